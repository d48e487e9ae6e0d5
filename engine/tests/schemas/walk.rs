//! Random texts that the grammar of a schema accepts.

use engine::guide::{Grammars, Guide, Opening, Structure, TextError, TokenBytes};
use serde_json::Value;

use crate::generated::Generator;

/// Id of the end token, after those of the 256 bytes.
const END: u32 = 256;
/// Number of tokens after which a walk takes the way to the end where it can.
const LONG: usize = 60;
/// Number of tokens after which a walk is given up: a string may go on without end.
const TOKENS_MAX: usize = 2000;

/// Grammar engine over bytes, and the walks through its grammars.
pub struct Walker(Grammars);

impl Walker {
    pub fn new() -> Self {
        let bytes = (0..=u8::MAX).map(|byte| TokenBytes { bytes: vec![byte], is_special: false });
        let end = TokenBytes { bytes: b"<end>".to_vec(), is_special: true };
        Self(Grammars::new(bytes.chain([end]), &[END]).unwrap())
    }

    pub fn guide(&self, schema: &Value) -> Result<Guide, TextError> {
        self.0.guide(&Structure::Json(schema.clone()), Opening::AtOnce, &|| true)
    }

    /// Returns a text that the guide accepts; none if the walk became too long.
    pub fn walk(&self, mut guide: Guide, random: &mut Generator) -> Option<String> {
        let mut text = Vec::new();
        while text.len() < TOKENS_MAX {
            let allowed = guide.allowed().unwrap().expect("the structure begins at once");
            if allowed.contains(END) && random.below(3) > 0 {
                break;
            }
            let token = choose(&text, |byte| allowed.contains(u32::from(byte)), random);
            let Some(token) = token else { break };
            text.push(token);
            if guide.accept(u32::from(token)).unwrap() {
                break;
            }
        }
        if text.len() >= TOKENS_MAX {
            return None;
        }
        Some(String::from_utf8(text).expect("a grammar's text is UTF-8"))
    }
}

/// Chooses the next byte among those that are allowed; none if only the end is.
pub fn choose(text: &[u8], is_allowed: impl Fn(u8) -> bool, random: &mut Generator) -> Option<u8> {
    // White space and digits could go on for long, and closing marks end a long text.
    let closing = [b'"', b'}', b']', b',', b':'];
    let long = text.len() > LONG || random.below(3) == 0;
    if long && let Some(mark) = closing.iter().find(|mark| is_allowed(**mark)) {
        return Some(*mark);
    }
    let bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| is_allowed(*byte)).collect();
    let dense: Vec<u8> = bytes.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let from = if dense.is_empty() { &bytes } else { &dense };
    (!from.is_empty()).then(|| from[random.below(from.len())])
}

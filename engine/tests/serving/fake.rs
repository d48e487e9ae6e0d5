//! Model and tokenizer for tests, simple enough that results are known: bytes are tokens, and the
//! next token is a hash of all tokens before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use engine::guide::{Grammars, Guide, IsWanted, Opening, Structure, TextError, TokenBytes};
use engine::tokenize::{CallFormat, Chat, Detokenizer, Reasoning, Text, TokenizerInfo};
use engine_core::sample::{SampleParams, Sampler};
use engine_core::{
    AttentionShape, DeviceError, KvType, LogitRows, StateSlots, StepBatch, StepOutput, StepToken,
    WeightType,
};
use engine_model::{MatrixShape, Model, ModelInfo};

/// Size of the vocabulary: ids below 256 are bytes, the others are special tokens.
pub const VOCAB_SIZE: usize = 258;
pub const BEGIN: u32 = 256;
pub const END: u32 = 257;
/// Number of elements of the embeddings of a fake model that embeds.
pub const EMBEDDING_SIZE: usize = 4;

/// Behavior of the fake model's steps.
#[derive(Debug, Clone, Default)]
pub struct Behavior {
    /// Time that each step takes.
    pub step_time: Duration,
    /// Number of the step in which the model panics.
    pub panic_at: Option<usize>,
    /// Number of the step that the device fails to submit.
    pub fails_at: Option<usize>,
    /// Number of steps in flight while the next is submitted.
    pub run_ahead: usize,
    /// True for a model that embeds: each row is the token, its position, and zeros.
    pub embeds: bool,
    /// Output of every sequence after its first `>`, followed by the end token; none for hashes.
    pub script: Option<Vec<u32>>,
}

/// Fake model. It stores each position's token in its KV page, as a real cache stores keys, and all
/// tokens so far as recurrent state. So a wrong page table or a wrongly shared page changes the
/// output, and a state of another sequence panics.
#[derive(Debug)]
pub struct FakeModel {
    info: ModelInfo,
    pages: BTreeMap<(u32, usize), u32>,
    states: BTreeMap<u32, Vec<u32>>,
    page_tokens: usize,
    sampler: Sampler,
    /// Tokens that the last submitted step sampled.
    sampled: Vec<Option<u32>>,
    /// Logits and tokens of the steps in flight.
    in_flight: VecDeque<(Vec<f32>, Vec<Option<u32>>)>,
    completed: (Vec<f32>, Vec<Option<u32>>),
    steps: usize,
    behavior: Behavior,
    /// Largest number of sequences in one step, shared with the test.
    pub widest: Arc<AtomicUsize>,
}

impl FakeModel {
    pub fn new(behavior: Behavior, widest: Arc<AtomicUsize>) -> Self {
        let info = ModelInfo {
            architecture: "FakeForCausalLM".into(),
            vocab_size: VOCAB_SIZE,
            max_seq_len: 256,
            parameters: 0,
            active_layer_parameters: 0,
            has_experts: false,
            compute_dtype: "f32",
            kv_type: KvType::F32,
            kv_bytes_per_token: 4,
            state_bytes: 0,
            largest_matrix: MatrixShape { n: 1, k: 1, weight_type: WeightType::F32 },
            attention: AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 },
            embedding_size: behavior.embeds.then_some(EMBEDDING_SIZE),
        };
        Self {
            info,
            pages: BTreeMap::new(),
            states: BTreeMap::new(),
            page_tokens: 0,
            sampler: Sampler::default(),
            sampled: Vec::new(),
            in_flight: VecDeque::new(),
            completed: (Vec::new(), Vec::new()),
            steps: 0,
            behavior,
            widest,
        }
    }

    /// Advances the recurrent state from `position` to the end of `sequence`.
    fn advance(&mut self, state: StateSlots, position: usize, sequence: &[u32]) {
        let mut tokens = match state.load {
            Some(load) => self.states[&load].clone(),
            None => self.states.remove(&state.slot).unwrap_or_default(),
        };
        if position == 0 {
            tokens.clear();
        }
        assert_eq!(tokens, sequence[..position], "the state is that of the sequence");
        tokens.extend(&sequence[position..]);
        if let Some(save) = state.save {
            self.states.insert(save, tokens.clone());
        }
        self.states.insert(state.slot, tokens);
    }

    fn next_token(&self, sequence: &[u32]) -> u32 {
        if let Some(script) = &self.behavior.script {
            let begin = sequence.iter().position(|token| *token == u32::from(b'>'));
            let at = sequence.len() - begin.map_or(sequence.len(), |begin| begin + 1);
            return script.get(at).copied().unwrap_or(END);
        }
        next_token(sequence)
    }
}

/// Returns the token that the fake model generates after `sequence`: a lower-case letter, so that
/// texts are readable.
pub fn next_token(sequence: &[u32]) -> u32 {
    let hash = sequence.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    u32::from(b'a') + u32::try_from((hash >> 32) % 26).unwrap()
}

impl Model for FakeModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, _pages: usize, page_tokens: usize) -> Result<(), DeviceError> {
        self.page_tokens = page_tokens;
        Ok(())
    }

    fn run_ahead(&self) -> usize {
        self.behavior.run_ahead
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        std::thread::sleep(self.behavior.step_time);
        assert_ne!(Some(self.steps), self.behavior.panic_at, "as the test wants");
        if Some(self.steps) == self.behavior.fails_at {
            let message = "as the test wants".to_owned();
            return Err(DeviceError { operation: "submit", message });
        }
        assert!(self.in_flight.len() <= self.behavior.run_ahead, "steps land in time");
        self.steps += 1;
        self.widest.fetch_max(batch.sequences.len(), Ordering::Relaxed);
        let (mut logits, mut sampled) = (Vec::new(), Vec::new());
        let before = std::mem::take(&mut self.sampled);
        let mut tokens = batch.tokens.iter().map(|token| match *token {
            StepToken::Known(id) => id,
            StepToken::Sampled(index) => before[index as usize].unwrap(),
        });
        for scheduled in &batch.sequences {
            for position in scheduled.position..scheduled.end() {
                let page = scheduled.pages[position / self.page_tokens];
                self.pages.insert((page, position % self.page_tokens), tokens.next().unwrap());
            }
            let slot = |p: usize| (scheduled.pages[p / self.page_tokens], p % self.page_tokens);
            let sequence: Vec<_> = (0..scheduled.end()).map(|p| self.pages[&slot(p)]).collect();
            if let Some(state) = scheduled.state {
                self.advance(state, scheduled.position, &sequence);
            }
            let sampling = match scheduled.logits {
                LogitRows::Sample(first) | LogitRows::SampleEach { first, .. } => Some(first),
                _ => None,
            };
            for (index, row) in (0..).zip(scheduled.head_rows()) {
                if self.behavior.embeds {
                    let position = scheduled.position + row;
                    logits.extend([sequence[position] as f32, position as f32, 0.0, 0.0]);
                    continue;
                }
                let next = self.next_token(&sequence[..=scheduled.position + row]);
                let row = (0..VOCAB_SIZE as u32).map(|id| if id == next { 9.0 } else { 0.0 });
                let Some(first) = sampling else {
                    logits.extend(row);
                    continue;
                };
                let params = SampleParams { index: first.index + index, ..first };
                let row: Vec<f32> = row.collect();
                sampled.push(self.sampler.sample_logits(&row, &params).ok());
            }
        }
        self.in_flight.push_back((logits, sampled.clone()));
        self.sampled = sampled;
        Ok(())
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.completed = self.in_flight.pop_front().expect("a step is in flight");
        let (logits, tokens) = &self.completed;
        Ok(StepOutput { logits, tokens })
    }
}

/// Tokenizer whose tokens are bytes.
#[derive(Debug)]
pub struct ByteText {
    pub reasoning: Reasoning,
    /// Barrier at which the template waits if a message has the role `sleeper`.
    pub wake: Arc<Barrier>,
    /// Number of bytes that were tokenized, shared with the test.
    pub tokenized: Arc<AtomicUsize>,
}

impl Text for ByteText {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        self.tokenized.fetch_add(text.len(), Ordering::Relaxed);
        // The library of a real tokenizer may panic.
        assert!(!text.contains('\u{7}'), "as the test wants");
        let begin = add_special_tokens.then_some(BEGIN);
        // A tokenizer may have tokens that the model does not have.
        let id = |byte| if byte == 0x7f { 1_000_000 } else { u32::from(byte) };
        Ok(begin.into_iter().chain(text.bytes().map(id)).collect())
    }

    fn fewest_tokens(&self, text: &str, enough: usize) -> usize {
        // As if any number of spaces could be one token.
        text.bytes().filter(|byte| *byte != b' ').count().min(enough + 1)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        match u8::try_from(token) {
            Ok(byte) => vec![byte],
            Err(_) => format!("<{token}>").into_bytes(),
        }
    }

    fn detokenizer(&self, shows_special: bool) -> Box<dyn Detokenizer> {
        Box::new(ByteDetokenizer { held: Vec::new(), shows_special })
    }

    fn info(&self) -> Option<TokenizerInfo> {
        let eos_token = Some("</s>".to_owned());
        Some(TokenizerInfo { bos_token: None, eos_token, chat_template: Some("{{ x }}".into()) })
    }

    fn reasoning(&self) -> Reasoning {
        self.reasoning
    }

    fn calls(&self) -> Option<CallFormat> {
        let format = match self.reasoning {
            Reasoning::Harmony => &engine::tools::HARMONY,
            _ => &engine::tools::TAGS,
        };
        Some(CallFormat { format, has_special: false })
    }

    fn guide(
        &self,
        structure: &Structure,
        _chat: Option<&str>,
        is_wanted: IsWanted<'_>,
    ) -> Result<Guide, TextError> {
        let tokens = (0..VOCAB_SIZE as u32)
            .map(|token| TokenBytes { bytes: self.token_bytes(token), is_special: token >= BEGIN });
        Grammars::new(tokens, &[END])?.guide(structure, Opening::AtOnce, is_wanted)
    }

    fn end_tokens(&self) -> &[u32] {
        &[END]
    }

    fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TextError> {
        let mut text = String::new();
        for message in chat.messages.as_array().unwrap() {
            let (role, content) = (&message["role"], &message["content"]);
            if role == "sleeper" {
                self.wake.wait();
            }
            if role == "wizard" {
                return Err(TextError("there is no role `wizard`".into()));
            }
            text.push_str(&format!("<{}:{}", role.as_str().unwrap(), content.as_str().unwrap()));
        }
        for tool in chat.tools.and_then(serde_json::Value::as_array).into_iter().flatten() {
            text.push_str(&format!("<tool:{}", tool["function"]["name"].as_str().unwrap()));
        }
        let variable = chat.variables.and_then(|variables| variables["mood"].as_str());
        text.push_str(variable.unwrap_or_default());
        Ok(if chat.add_generation_prompt { text + ">" } else { text })
    }
}

#[derive(Debug)]
struct ByteDetokenizer {
    held: Vec<u8>,
    shows_special: bool,
}

impl Detokenizer for ByteDetokenizer {
    fn push(&mut self, token: u32) -> String {
        match u8::try_from(token) {
            Ok(byte) => self.held.push(byte),
            Err(_) if self.shows_special => self.held.extend(format!("<{token}>").bytes()),
            Err(_) => {}
        }
        match std::str::from_utf8(&self.held) {
            Ok(text) => {
                let text = text.to_owned();
                self.held.clear();
                text
            }
            Err(error) if error.error_len().is_none() => {
                let rest = self.held.split_off(error.valid_up_to());
                String::from_utf8(std::mem::replace(&mut self.held, rest)).unwrap()
            }
            Err(_) => self.finish(),
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

//! SSH signatures (`ssh-keygen -Y sign`): made by the user's own program, which knows agents,
//! passphrases and hardware keys, and verified here, because a bundle comes from a stranger.
//!
//! A signature is an armored blob: the magic text, a version, the public key, the namespace, a
//! reserved text, the name of the hash, and the signature over all of that but the key. Texts have
//! their length before them. Only ed25519 is read.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ring::digest::{SHA256, SHA512, digest};
use ring::signature::{ED25519, UnparsedPublicKey};
use schema::untrusted::excerpt;

use crate::repository::Environment;

/// Program that signs with the user's key.
const PROGRAM: &str = "ssh-keygen";
/// First bytes of a signature, and of what is signed.
const MAGIC: &[u8] = b"SSHSIG";
/// Name of the one kind of key that is read.
pub const KEY_KIND: &str = "ssh-ed25519";
/// Lines before and after the base64 text of a signature.
const ARMOR: [&str; 2] = ["-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"];
/// Longest armored signature that is decoded, in bytes.
const SIGNATURE_BYTES_MAX: usize = 16 << 10;
/// Number of characters of a name in a signature that a message repeats.
const NAME_CHARS: usize = 40;

/// Public key of a signature, as SSH encodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// Reads a key from its base64 text, as `.pub` files and lists of allowed signers have it;
    /// `None` where it is no base64.
    pub fn of_base64(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok().map(Self)
    }

    /// Returns the fingerprint as `ssh-keygen -l` prints it: `SHA256:` and base64.
    pub fn fingerprint(&self) -> String {
        format!("SHA256:{}", STANDARD_NO_PAD.encode(digest(&SHA256, &self.0)))
    }
}

/// Verifies an armored signature over `message`, made for `namespace`, and returns its key. Whether
/// the key's owner is trusted is another question.
///
/// # Errors
///
/// The signature cannot be read, or is not one over this message; the error is a sentence.
pub fn verify(armored: &str, namespace: &str, message: &[u8]) -> Result<PublicKey, String> {
    let blob = unarmored(armored).ok_or("it is no armored SSH signature")?;
    let parts = Parts::of(&blob).ok_or("its blob is no SSH signature of version 1")?;
    let name = String::from_utf8_lossy(parts.namespace);
    if name != namespace {
        let name = excerpt(&name, NAME_CHARS);
        return Err(format!("it was made for `{name}`, not for `{namespace}`"));
    }
    let hash = match parts.hash {
        b"sha512" => digest(&SHA512, message),
        b"sha256" => digest(&SHA256, message),
        _ => return Err("its hash is neither sha512 nor sha256".to_owned()),
    };
    let mut signed = MAGIC.to_vec();
    for text in [parts.namespace, parts.reserved, parts.hash, hash.as_ref()] {
        let length = u32::try_from(text.len()).map_err(|_| "a text in it is too long")?;
        signed.extend(length.to_be_bytes());
        signed.extend(text);
    }
    let key = of_kind(parts.key)?;
    let signature = of_kind(parts.signature)?;
    UnparsedPublicKey::new(&ED25519, key)
        .verify(&signed, signature)
        .map_err(|_| "it is not a signature of this manifest".to_owned())?;
    Ok(PublicKey(parts.key.to_vec()))
}

/// Signs `message` with the user's `ssh-keygen` and the key in the file `key`: a private key, or the
/// public one of a key that an agent holds.
///
/// # Errors
///
/// The program is missing or fails, or the key is not of a kind that [`verify`] reads.
pub fn sign(key: &Path, namespace: &str, message: &[u8]) -> Result<String> {
    let mut command = Command::new(PROGRAM);
    command.args(["-Y", "sign", "-n", namespace, "-f"]).arg(key);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cannot = || Environment(format!("cannot start `{PROGRAM}`\nhint: install OpenSSH 8.1"));
    let mut child = command.spawn().with_context(cannot)?;
    if let Some(mut input) = child.stdin.take() {
        // A program that ended early says why below.
        let _ = input.write_all(message);
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(Environment(format!("`{PROGRAM} -Y sign` failed: {}", said.trim())));
    }
    match verify(&text, namespace, message) {
        Ok(_) => Ok(text),
        Err(why) => bail!("cannot use the signature of `{}`: {why}", key.display()),
    }
}

fn unarmored(text: &str) -> Option<Vec<u8>> {
    if text.len() > SIGNATURE_BYTES_MAX {
        return None;
    }
    let [begin, end] = ARMOR;
    let inner = text.trim().strip_prefix(begin)?.strip_suffix(end)?;
    let inner: String = inner.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(inner).ok()
}

/// Returns the last text of a key or signature of [`KEY_KIND`].
fn of_kind(blob: &[u8]) -> Result<&[u8], String> {
    let mut rest = blob;
    let kind = text_of(&mut rest).ok_or("its key cannot be read")?;
    if kind != KEY_KIND.as_bytes() {
        let kind = excerpt(&String::from_utf8_lossy(kind), NAME_CHARS);
        return Err(format!("it is of a key of kind `{kind}`, and only `{KEY_KIND}` is read"));
    }
    let value = text_of(&mut rest).filter(|_| rest.is_empty());
    value.ok_or_else(|| "its key cannot be read".to_owned())
}

/// Texts of a signature's blob.
struct Parts<'a> {
    key: &'a [u8],
    namespace: &'a [u8],
    reserved: &'a [u8],
    hash: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(blob: &'a [u8]) -> Option<Self> {
        let rest = blob.strip_prefix(MAGIC)?;
        let mut rest = rest.strip_prefix(&1_u32.to_be_bytes())?;
        let mut next = || text_of(&mut rest);
        let parts = Self {
            key: next()?,
            namespace: next()?,
            reserved: next()?,
            hash: next()?,
            signature: next()?,
        };
        rest.is_empty().then_some(parts)
    }
}

/// Takes a text with its length, of four bytes, before it from the beginning of `rest`.
fn text_of<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (text, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf hello | ssh-keygen -Y sign -n redline-submission` of OpenSSH.
    const SIGNATURE: &str = include_str!("testdata/hello.sig");
    const NAMESPACE: &str = schema::submission::NAMESPACE;

    #[test]
    fn a_signature_of_openssh_is_verified() {
        let key = verify(SIGNATURE, NAMESPACE, b"hello").unwrap();
        let public = include_str!("testdata/hello.pub");
        let mut words = public.split_whitespace();
        assert_eq!(words.next(), Some(KEY_KIND));
        assert_eq!(Some(key), PublicKey::of_base64(words.next().unwrap()));
    }

    #[test]
    fn another_message_namespace_or_bit_is_refused() {
        assert!(verify(SIGNATURE, NAMESPACE, b"hellp").is_err());
        let other = verify(SIGNATURE, "git", b"hello").unwrap_err();
        assert!(other.contains("made for `redline-submission`"), "{other}");
        let blob = unarmored(SIGNATURE).unwrap();
        for index in 0..blob.len() {
            let mut changed = blob.clone();
            changed[index] ^= 1;
            let [begin, end] = ARMOR;
            let text = format!("{begin}\n{}\n{end}\n", STANDARD.encode(&changed));
            assert!(verify(&text, NAMESPACE, b"hello").is_err(), "byte {index}");
            let cut = format!("{begin}\n{}\n{end}\n", STANDARD.encode(&blob[..index]));
            assert!(verify(&cut, NAMESPACE, b"hello").is_err(), "{index} bytes");
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        for text in ["", "-----BEGIN SSH SIGNATURE-----", &"A".repeat(SIGNATURE_BYTES_MAX + 1)] {
            assert!(verify(text, NAMESPACE, b"").is_err());
        }
    }
}

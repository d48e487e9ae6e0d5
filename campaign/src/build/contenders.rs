//! Baseline and candidate of a gate: from names, a wheel or an image to variants.

use std::path::Path;

use crate::build::installed::DIGEST;
use crate::build::variants::{ImageOf, Origin, REDLINE, Wanted, commit, named, working_tree};
use crate::build::wheel::Wheel;
use crate::cli::{GateCandidate, GateRequest, Packages};
use crate::git::Git;
use crate::plan::release::{is_name, newest, read_history};
use crate::plan::{Variant, parse_other_engine};
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Resolves what a gate compares to variants: the baseline, then the candidate.
///
/// # Errors
/// A name means neither a release nor a commit nor an engine's release, the baseline is of another
/// engine and no candidate is named, a wheel or image is none or cannot be compared with the baseline,
/// or anything that resolving a name fails with.
pub fn variants(
    world: &World,
    request: &GateRequest,
    packages: Packages,
) -> Result<Vec<Wanted>, Stop> {
    let baseline = match &request.baseline {
        Some(name) => contender(world, name, packages)?,
        None => {
            let git = Git::open(&world.places.root, &world.interrupt)?;
            let newest = newest(&read_history(&git, &[])?).ok_or_else(|| {
                Stop::wrong_use("this clone has no release to compare with")
                    .with_hint("name a commit, such as `cargo xtask gate HEAD`")
            })?;
            contender(world, &newest, packages)?
        }
    };
    let engine = &baseline.engine.id;
    let mut candidate = match &request.candidate {
        GateCandidate::Tree if engine != REDLINE => {
            return Err(wrong_use!("this would compare {engine} with this clone's own working tree")
                .with_hint(format!(
                    "`--candidate {engine}@VERSION` names another release of it, to which `--variant` \
                     adds flags; `--candidate-wheel FILE` and `--candidate-image IMAGE` name what is \
                     no release; `--candidate HEAD` compares it with Redline"
                )));
        }
        GateCandidate::Tree => working_tree(world, &world.catalog.engine(REDLINE)?, None)?,
        GateCandidate::Named(name) => contender(world, name, packages)?,
        GateCandidate::Wheel(path) => of_wheel(&baseline, path)?,
        GateCandidate::Image(name) => of_image(&baseline, name)?,
    };
    if let Some((name, flags)) = &request.variant {
        candidate.variant.name = Some(name.clone());
        candidate.variant.flags.extend_from_slice(flags);
    }
    Ok(vec![baseline, candidate])
}

/// Resolves one name: `ENGINE@VERSION`, a release of Redline, or a commit of this clone.
fn contender(world: &World, name: &str, packages: Packages) -> Result<Wanted, Stop> {
    if let Ok((engine, version)) = parse_other_engine(name) {
        return named(world, &world.catalog.engine(&engine)?, Some(&version), packages);
    }
    let engine = world.catalog.engine(REDLINE)?;
    if is_name(name) {
        return named(world, &engine, Some(name), packages);
    }
    commit(world, &engine, name)
}

/// Resolves a wheel to a variant of the baseline's engine.
///
/// # Errors
/// The baseline is no release of a Python package, or the file is no wheel of that package.
fn of_wheel(baseline: &Wanted, path: &Path) -> Result<Wanted, Stop> {
    let Origin::Venv { version, device } = &baseline.origin else {
        return Err(wrong_use!(
            "a wheel is compared with a release of its package, and the baseline is {}",
            baseline.title()
        )
        .with_hint("name a baseline such as `vllm@v0.11.0`"));
    };
    let wheel = Wheel::read(path, &baseline.engine)?;
    let name = format!("v{}", wheel.version);
    let origin = Origin::Wheel { wheel, compared: version.clone(), device: *device };
    Ok(candidate_of(baseline, &name, origin))
}

/// Resolves a container image to a variant of the baseline's engine.
///
/// # Errors
/// The baseline does not run in an image, the text is no name of an image, or it has no digest and the
/// container runtime reports none.
fn of_image(baseline: &Wanted, name: &str) -> Result<Wanted, Stop> {
    let Origin::Image { runtime, accelerator, .. } = &baseline.origin else {
        return Err(wrong_use!(
            "an image is compared with the image of a release, and the baseline is {}",
            baseline.title()
        )
        .with_hint("name a baseline such as `vllm@v0.11.0`, and `--container docker`"));
    };
    let tag = tag_of(name).ok_or_else(|| wrong_use!("`{name}` is no name of a container image"))?;
    if runtime.runs_processes() && !name.contains(DIGEST) {
        let program = runtime.program();
        return Err(wrong_use!("{program} does not report the digest of `{name}`")
            .with_hint(format!("name the image with its digest: `NAME{DIGEST}...`")));
    }
    let of = ImageOf::Candidate(name.to_owned());
    let origin = Origin::Image { of, runtime: *runtime, accelerator: *accelerator };
    Ok(candidate_of(baseline, tag, origin))
}

/// Returns a variant of the baseline's engine with the same flags. The suffix of its name keeps it from
/// being taken for a release.
fn candidate_of(baseline: &Wanted, name: &str, origin: Origin) -> Wanted {
    let Wanted { variant, engine, .. } = baseline;
    let flags = variant.flags.clone();
    let variant = Variant { flags, ..Variant::plain(&engine.id, &format!("{name}-dev")) };
    Wanted { variant, engine: engine.clone(), origin }
}

/// Number of hex digits of a digest that name an image without a tag.
const DIGITS: usize = 10;

/// Returns the tag of a container image's name; for a name without one the beginning of its digest,
/// or `latest`. `None` if the text is no name of an image.
fn tag_of(name: &str) -> Option<&str> {
    let (tagged, digest) = match name.split_once('@') {
        Some((tagged, _)) => (tagged, Some(name.strip_prefix(tagged)?.strip_prefix(DIGEST)?)),
        None => (name, None),
    };
    let is_hex = |digest: &str| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    let begins = tagged.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !begins || !tagged.bytes().all(fit) || !digest.is_none_or(is_hex) {
        return None;
    }
    // A colon before the last slash is that of a registry's port.
    let last = tagged.rsplit('/').next()?;
    match (last.split_once(':'), digest) {
        (Some((_, tag)), _) => Some(tag).filter(|tag| !tag.is_empty()),
        (None, Some(digest)) => digest.get(..DIGITS),
        (None, None) => Some("latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_named_by_its_tag_or_its_digest() {
        let digest = format!("@sha256:{}", "1a2b".repeat(16));
        for (name, tag) in [
            ("vllm".to_owned(), Some("latest")),
            ("localhost:5000/team/vllm".to_owned(), Some("latest")),
            ("localhost:5000/team/vllm:pr-123".to_owned(), Some("pr-123")),
            (format!("team/vllm:pr-123{digest}"), Some("pr-123")),
            (format!("team/vllm{digest}"), Some("1a2b1a2b1a")),
            ("--privileged".to_owned(), None),
            ("a b".to_owned(), None),
            ("vllm:".to_owned(), None),
            ("vllm@sha256:1a2b".to_owned(), None),
            ("vllm@md5:1a2b".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(tag_of(&name), tag, "{name}");
        }
    }
}

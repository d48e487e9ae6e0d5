//! Expected prefix cache hits of a manifest, from the prefixes that repeat within it. Knows no
//! server.

use std::collections::BTreeSet;

use schema::canonical::sha256_hex;
use schema::manifest::ManifestRequest;

/// Returns the largest number of prompt tokens that an empty prefix cache with pages of
/// `page_tokens` tokens can serve when `requests` are sent in order.
///
/// A page counts when an earlier prompt has the same tokens from its start to the page's end. The
/// last token of a prompt is always computed, since its logits are needed. The figure is an upper
/// bound: of two equal prompts in flight at once, the second may miss.
pub fn expected_hit_tokens(requests: &[ManifestRequest], page_tokens: usize) -> u64 {
    if page_tokens == 0 {
        return 0;
    }
    let mut seen = BTreeSet::new();
    let mut hits = 0;
    for request in requests {
        let usable = request.prompt.len().saturating_sub(1) / page_tokens;
        let mut leading = true;
        let mut chain = String::new();
        for (index, page) in request.prompt.chunks_exact(page_tokens).enumerate() {
            let tokens = page.iter().flat_map(|id| id.to_le_bytes());
            let bytes: Vec<u8> = chain.bytes().chain(tokens).collect();
            // The chained hash stands for the page and everything before it.
            chain = sha256_hex(&bytes);
            let new = seen.insert(chain.clone());
            // A cache matches prefixes only: after the first miss no later page hits.
            leading &= !new;
            if leading && index < usable {
                hits += page_tokens as u64;
            }
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: Vec<u32>) -> ManifestRequest {
        ManifestRequest { prompt, output_tokens: 1, ..ManifestRequest::default() }
    }

    #[test]
    fn only_whole_leading_pages_seen_before_count() {
        let long: Vec<u32> = (0..40).collect();
        let mut other = long.clone();
        other[20] = 99;
        let cases = [
            ("one prompt cannot hit itself", vec![long.clone()], 0),
            ("a repeated prompt hits its whole pages", vec![long.clone(), long.clone()], 32),
            ("a difference in page two leaves page one", vec![long.clone(), other], 16),
            ("the last token is always computed", vec![long[..32].into(), long[..32].into()], 16),
            ("equal pages further on do not lead", vec![long.clone(), long[16..].into()], 0),
        ];
        for (claim, prompts, expected) in cases {
            let requests: Vec<_> = prompts.into_iter().map(request).collect();
            assert_eq!(expected_hit_tokens(&requests, 16), expected, "{claim}");
        }
    }
}

//! Differential test of structured output: a text that the grammar of a JSON schema accepts is JSON
//! that a validator finds valid, as are the arguments of tool calls in each model's format.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod generated;
#[cfg(test)]
mod validator;
#[cfg(test)]
mod walk;

#[cfg(test)]
mod tests {
    use crate::generated::Generator;
    use crate::validator::{is_valid, read};
    use crate::walk::Walker;

    /// Checks the schemas of these seeds, and returns how many texts were compared.
    fn check(seeds: std::ops::Range<u64>) -> (usize, usize) {
        let walker = Walker::new();
        let (mut compared, mut refused) = (0, 0);
        for seed in seeds {
            let mut random = Generator::new(seed);
            let schema = random.schema();
            // The grammar engine does not support every combination of keywords.
            let Ok(guide) = walker.guide(&schema) else {
                refused += 1;
                continue;
            };
            for _ in 0..3 {
                let Some(text) = walker.walk(guide.clone(), &mut random) else { continue };
                let Some(value) = read(&text, seed) else { continue };
                assert!(is_valid(&schema, &schema, &value), "seed {seed}: {text} for {schema}");
                compared += 1;
            }
        }
        (compared, refused)
    }

    #[test]
    fn what_a_grammar_accepts_is_valid() {
        let (compared, refused) = check(0..1000);
        assert!(compared > 1500 && refused < 300, "{compared} texts, {refused} schemas refused");
    }

    #[test]
    fn extra_what_many_grammars_accept_is_valid() {
        let (compared, _) = check(1000..100_000);
        assert!(compared > 100_000, "{compared} texts");
    }
}

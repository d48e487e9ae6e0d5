//! Test of the asm statements of the kernels' headers, which the shim replaces in all other tests.
//!
//! Each statement is turned into calls of C++ functions that do what its PTX instructions do
//! (`ptx.h`), with its operands in the order of the instruction text. Then kernels that call the
//! functions around them (`inline_asm.cuh`) must give the same bits as with the shim's functions.
//! So the order of registers and the immediate operands are checked without a GPU and without the
//! CUDA compiler, which checks only their number and types.

use std::fmt::Write as _;
use std::fs;

use tempfile::TempDir;

use super::*;
use crate::emulated::compiler::home;

/// Headers with asm statements.
const HEADERS: [&str; 3] = ["prims", "bulk", "warpgroup"];
/// Kernels of `inline_asm.cuh`, and the number of words that each thread writes.
const KERNELS: [(&str, usize); 6] = [
    ("conversions", 6),
    ("matrices", 8),
    ("products", 8),
    ("copies", 8),
    ("bulk_copies", 4),
    ("group_products", 312),
];
const THREADS: usize = 128;
const WORDS: usize = 8192;

/// Mistakes in asm statements that the CUDA compiler accepts: the text, what replaces it, and the
/// kernel whose result is wrong then.
const MISTAKES: [(&str, &str, &str); 9] = [
    (r#""f"(high), "f"(low));"#, r#""f"(low), "f"(high));"#, "conversions"),
    (r#""r"(factor), "r"(0x80008000u)"#, r#""r"(0x80008000u), "r"(factor)"#, "conversions"),
    ("x4.shared.b16 {%0, %1, %2, %3}", "x4.shared.b16 {%0, %2, %1, %3}", "matrices"),
    ("x4.trans.shared", "x4.shared", "matrices"),
    ("{%8, %9}", "{%9, %8}", "products"),
    ("cp.async.wait_group %0;", "cp.async.wait_group 1;", "copies"),
    (r#""r"(place), "r"(phase)"#, r#""r"(phase), "r"(place)"#, "bulk_copies"),
    ("%64, %65, 1, 1, 1, 0, 0;", "%65, %64, 1, 1, 1, 0, 0;", "group_products"),
    ("%36, 1, 1, 1, %37;", "%36, 1, 1, 1, 0;", "group_products"),
];

/// Returns the functions of a header with asm statements: the text that the shim replaces, without
/// preprocessor directives, with macros in it expanded.
fn functions(header: &str) -> String {
    let path = home().join("kernels").join(header).with_extension("cuh");
    let text = fs::read_to_string(path).unwrap();
    let mut depth = 0;
    let (mut macros, mut kept) = (Vec::new(), String::new());
    for line in text.lines().skip_while(|line| *line != "#ifdef SHIM") {
        if let Some(directive) = line.strip_prefix('#') {
            match directive.split(' ').next().unwrap() {
                "ifdef" | "if" => depth += 1,
                "endif" => depth -= 1,
                "define" if line.contains("+f") => macros.push(directive),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        } else {
            writeln!(kept, "{line}").unwrap();
        }
    }
    macros.into_iter().fold(kept, |text, one| expanded(&text, one))
}

/// Expands a macro of two parameters, `define NAME(a, b) body`, whose arguments have no commas.
fn expanded(text: &str, definition: &str) -> String {
    let (name, rest) = definition["define ".len()..].split_once('(').unwrap();
    let (parameters, body) = rest.split_once(')').unwrap();
    let (first, second) = parameters.split_once(", ").unwrap();
    let call = format!("{name}(");
    let mut parts = text.split(&call);
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (arguments, rest) = part.split_once(')').unwrap();
        let (one, other) = arguments.split_once(", ").unwrap();
        let of = |body: &str| {
            body.replace(&format!("({first}["), &format!("({one}["))
                .replace(&format!("[{second}]"), &format!("[{other}]"))
        };
        write!(out, "{}{rest}", of(body)).unwrap();
    }
    out
}

/// Returns the name of the function of each asm statement of `text`.
fn functions_with_asm(text: &str) -> Vec<&str> {
    let (mut function, mut names) = ("", Vec::new());
    for line in text.lines() {
        if let Some((_, definition)) = line.split_once("DEVICE ") {
            let head = definition.split('(').next().unwrap();
            function = head.rsplit(' ').next().unwrap();
        }
        names.extend(line.matches("asm").map(|_| function));
    }
    names
}

/// Replaces every asm statement of `text` by the calls of its instructions, after one that counts
/// the statement.
fn without_asm(text: &str) -> String {
    let mut parts = text.split("asm");
    let mut out = parts.next().unwrap().to_owned();
    for (index, part) in parts.enumerate() {
        let (statement, rest) = match part.trim_start_matches(" volatile").strip_prefix('(') {
            Some(open) => open.split_at(end_of(open)),
            None => panic!("an unknown asm statement: {part}"),
        };
        let calls = calls(statement);
        write!(out, "{{ ++ptx::executed[{index}]; {calls} }}{}", &rest[1..]).unwrap();
    }
    out
}

/// Splits `text` at every `separator` outside of strings and parentheses.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut is_string, mut start, mut parts) = (0, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_string = !is_string,
            _ if is_string => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        if c == separator && depth == 0 && !is_string {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Returns the index of the parenthesis that closes one before `text`.
fn end_of(text: &str) -> usize {
    let (mut depth, mut is_string) = (1, false);
    let end = text.find(|c: char| {
        match c {
            '"' => is_string = !is_string,
            '(' if !is_string => depth += 1,
            ')' if !is_string => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.expect("parentheses are closed")
}

/// Returns the calls of the instructions of an asm statement, given what is in its parentheses.
fn calls(statement: &str) -> String {
    let sections = split(statement, ':');
    // The odd parts between quotes are in strings.
    let template: String = sections[0].split('"').skip(1).step_by(2).collect();
    let mut operands = Vec::new();
    for (section, way) in sections[1..].iter().zip(["out", "in"]) {
        for operand in split(section, ',').into_iter().filter(|one| !one.trim().is_empty()) {
            let (constraint, value) = operand.trim()[1..].split_once('"').unwrap();
            let kind = constraint.trim_start_matches(['=', '+']);
            operands.push(format!("ptx::{way}_{kind}{value}"));
        }
    }
    if template.is_empty() {
        // Such a statement only stands between the operands' uses.
        return format!("ptx::list({});", operands.join(", "));
    }
    let instructions = template.replace("\\n", " ");
    let each = instructions.split(';').map(|one| one.trim().trim_start_matches("{ "));
    each.filter(|one| !matches!(*one, "" | "}")).map(|one| call(one, &operands)).collect()
}

/// Returns the call of one PTX instruction; `%0` is the first of `operands`.
fn call(instruction: &str, operands: &[String]) -> String {
    let (opcode, arguments) = instruction.split_once(' ').unwrap_or((instruction, ""));
    if opcode == ".reg" {
        return format!("bool {}; ", arguments.trim_start_matches(".pred "));
    }
    let mut out = format!("ptx::{}(", opcode.replace(['.', ':'], "_"));
    let mut rest = arguments.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '{' => out.push_str("ptx::list("),
            '[' => out.push_str("ptx::at("),
            '}' | ']' => out.push(')'),
            '_' => out.push_str("ptx::sink"),
            '%' => {
                let mut number = 0;
                while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                    number = 10 * number + digit as usize;
                    rest.next();
                }
                out.push_str(&operands[number]);
            }
            c => out.push(c),
        }
    }
    out + "); "
}

/// Compiles the kernels with the shim's functions, with the asm statements, and with each of the
/// [`MISTAKES`] in these the kernel that finds it.
fn program() -> Option<Program> {
    let read = |name: &str| fs::read_to_string(home().join("src/tests").join(name)).unwrap();
    let cases = read("inline_asm.cuh");
    let mut sections = cases.split("\n//# ");
    let shared = sections.next().unwrap();
    let kernels: Vec<&str> = sections.collect();
    let asm = HEADERS.map(functions).concat();
    let (mut text, mut bodies) = (String::new(), String::new());
    let mut namespace = |name: &str, functions: &str, only: Option<&str>| {
        let own = |kernel: &str| only.is_none_or(|only| only == kernel);
        writeln!(bodies, "namespace {name} {{\n{functions}\n{shared}").unwrap();
        for kernel in &kernels {
            let (kernel, body) = kernel.split_once('\n').unwrap();
            if own(kernel) {
                writeln!(text, "//@ {name}::{kernel}: shared 0").unwrap();
                writeln!(bodies, "{body}").unwrap();
            }
        }
        writeln!(bodies, "}}").unwrap();
    };
    let with_asm = |asm: &str| {
        let cast =
            "inline u64 __cvta_generic_to_shared(const void* p) { return ptx::to_shared(p); }";
        format!("{cast}\n{}", without_asm(asm))
    };
    namespace("by_shim", "", None);
    namespace("by_asm", &with_asm(&asm), None);
    for (index, (from, to, kernel)) in MISTAKES.iter().enumerate() {
        assert!(asm.contains(from), "`{from}` is in a header");
        let wrong = with_asm(&asm.replace(from, to));
        namespace(&format!("mistake_{index}"), &wrong, Some(kernel));
    }
    writeln!(text, "//@ executed: shared 0").unwrap();
    for header in HEADERS {
        writeln!(text, "#include \"{}/kernels/{header}.cuh\"", home().display()).unwrap();
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("inline_asm.cu");
    fs::write(&path, format!("{text}{}\n{bodies}", read("ptx.h"))).unwrap();
    Program::compile_source(&path)
}

/// Returns the call of a kernel in a namespace.
fn call_of(namespace: &str, (kernel, words): (&str, usize)) -> Call {
    // Numbers around those of e4m3, some of them between two e4m3 or two bf16.
    let mut state = 1u32;
    let one = |index| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = (state & 0x807f_ffff) | ((114 + (state >> 24 & 31)) << 23);
        match index % 4 {
            1 => x & 0xfff8_0000,
            2 => x & 0xffff_0000 | 0x8000,
            _ => x,
        }
    };
    let mut input: Vec<u32> = (0..WORDS).map(one).collect();
    input[..4].copy_from_slice(&[0x7fc0_0000, 0, 0x8000_0000, 0x3f80_8000]);
    let launch = Launch { grid: [1, 1, 1], block: THREADS as u32, shared_bytes: 4 * WORDS as u32 };
    Call::new(&format!("{namespace}::{kernel}"), launch)
        .buffer(&vec![77u32; words * THREADS])
        .buffer(&input)
}

#[test]
fn asm_statements_do_what_the_shim_does_and_mistakes_in_them_are_found() {
    if fixtures::is_gpu_required() {
        return;
    }
    let Some(program) = program() else { return };
    let run = |call: Call| elements::<u32>(&program.run(&[call])[0][0]);
    for kernel in KERNELS {
        let [wanted, got] = ["by_shim", "by_asm"].map(|namespace| run(call_of(namespace, kernel)));
        let first = wanted.iter().zip(&got).position(|(wanted, got)| wanted != got);
        let at = first.map(|at| (at, wanted[at], got[at]));
        assert!(at.is_none(), "{}: index, wanted and found word: {at:x?}", kernel.0);
        for (index, (mistake, _, _)) in
            MISTAKES.iter().enumerate().filter(|(_, mistake)| mistake.2 == kernel.0)
        {
            let call = call_of(&format!("mistake_{index}"), kernel);
            let is_found =
                !program.attempt(std::slice::from_ref(&call), || shim::mode(0)).status.success()
                    || run(call) != wanted;
            assert!(is_found, "`{mistake}`");
        }
    }
}

#[test]
fn every_asm_statement_is_in_a_known_header_and_executed() {
    if fixtures::is_gpu_required() {
        return;
    }
    let has_asm = |path: &std::path::Path| fs::read_to_string(path).unwrap().contains("asm");
    let files = fs::read_dir(home().join("kernels")).unwrap().map(|file| file.unwrap().path());
    let mut found: Vec<_> = files.filter(|path| has_asm(path)).collect();
    found.sort();
    let known =
        ["bulk.cuh", "prims.cuh", "warpgroup.cuh"].map(|name| home().join("kernels").join(name));
    assert_eq!(found, known, "files with asm statements");
    let Some(program) = program() else { return };
    let mut calls: Vec<Call> = KERNELS.iter().map(|kernel| call_of("by_asm", *kernel)).collect();
    let asm = HEADERS.map(functions).concat();
    let names = functions_with_asm(&asm);
    let launch = Launch { grid: [1, 1, 1], block: 32, shared_bytes: 0 };
    calls.push(
        Call::new("executed", launch).buffer(&vec![0u32; names.len()]).value(names.len() as u32),
    );
    let results = program.run(&calls);
    let counts: Vec<u32> = elements(&results.last().unwrap()[0]);
    let missing: Vec<&str> =
        names.iter().zip(counts).filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect();
    assert!(
        missing.is_empty(),
        "`inline_asm.cuh` does not execute the asm statements of {missing:?}"
    );
}

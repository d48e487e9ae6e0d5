//! Parses a page as a browser does, and collects what tests check: parse errors, ids, links, text.

use std::collections::BTreeSet;

use html5ever::tendril::TendrilSink;
use html5ever::tokenizer::TokenizerOpts;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

/// A parsed page.
#[derive(Debug, Default)]
pub struct Page {
    pub ids: BTreeSet<String>,
    /// Every `href` and `src` within the site, in order.
    pub links: Vec<String>,
    /// Every `href` of a link that is marked as one that leaves the site.
    pub foreign: Vec<String>,
    /// Visible text, with tags as separators.
    pub text: String,
}

/// Parses `html` by the rules of browsers.
///
/// # Errors
///
/// The parser had to repair something, or an id occurs twice.
pub fn parse(html: &str) -> Result<Page, String> {
    let tokenizer = TokenizerOpts { exact_errors: true, ..TokenizerOpts::default() };
    let options = ParseOpts { tokenizer, ..ParseOpts::default() };
    let dom = parse_document(RcDom::default(), options).one(html);
    if let Some(fault) = dom.errors.borrow().first() {
        return Err(format!("{fault}"));
    }
    let mut page = Page::default();
    // The thread has its own large stack, because a page may be deeply nested.
    let mut open: Vec<Handle> = vec![dom.document.clone()];
    while let Some(node) = open.pop() {
        match &node.data {
            NodeData::Text { contents } => page.text.push_str(&contents.borrow()),
            NodeData::Element { attrs, .. } => {
                let attrs = attrs.borrow();
                let leaves = attrs.iter().any(|attribute| {
                    &*attribute.name.local == "rel" && attribute.value.starts_with("nofollow ")
                });
                for attribute in attrs.iter() {
                    let value = attribute.value.to_string();
                    match &*attribute.name.local {
                        "href" if leaves => page.foreign.push(value),
                        "href" | "src" => page.links.push(value),
                        "id" if !page.ids.insert(value.clone()) => {
                            return Err(format!("the id `{value}` is there twice"));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        open.extend(node.children.borrow().iter().rev().cloned());
    }
    Ok(page)
}

#[test]
fn what_a_browser_would_mend_is_a_fault() {
    let page = |body: &str| {
        let head = "<!doctype html><html lang=en><head><title>t</title></head><body>";
        parse(&format!("{head}{body}</body></html>"))
    };
    let whole = page("<p id=a>x <a href=b>y</a></p><svg><path d=\"M0 0\"/></svg>");
    let whole = whole.expect("sound");
    assert!(whole.ids.contains("a") && whole.links == ["b"] && whole.text.contains("x y"));
    for (body, fault) in [
        ("<table><p>x</p></table>", "in a table"),
        ("</div>", "end tag"),
        ("<p id=a></p><p id=a></p>", "twice"),
        ("<b><p></b></p>", "misnested"),
    ] {
        assert!(page(body).is_err(), "{fault}");
    }
}

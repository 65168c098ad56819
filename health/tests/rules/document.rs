//! `docs/health-rules.md` is what the table says.

use std::path::Path;

#[test]
fn the_page_of_rules_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/health-rules.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find("| # |").expect("the page has the table");
    let end = page[begin..].find("\n\n").map_or(page.len(), |at| begin + at + 1);
    let table = gangline_health::rule::markdown();
    if std::env::var_os("UPDATE").is_some() {
        let new = format!("{}{table}{}", &page[..begin], &page[end..]);
        std::fs::write(&path, new).unwrap();
    } else {
        assert!(page[begin..end] == table, "run with UPDATE=1 to write the table anew:\n{table}");
    }
}

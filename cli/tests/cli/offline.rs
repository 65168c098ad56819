//! What needs no coordinator: help texts, wrong usage, `validate`, `--dry-run`. The golden texts
//! are in `tests/cmd`; `TRYCMD=overwrite` writes them anew.

#[test]
fn golden_texts() {
    trycmd::TestCases::new()
        .default_bin_path(std::path::Path::new(env!("CARGO_BIN_EXE_gangline")))
        .env("GANGLINE_CONFIG", "")
        .env("GANGLINE_ADDRESS", "http://127.0.0.1:1")
        .env("GANGLINE_TOKEN", "")
        .env("NO_COLOR", "1")
        .case("tests/cmd/*.trycmd");
}

//! The `gangline` command: see `args` for its commands and `commands` for what they do.

fn main() -> std::process::ExitCode {
    gangline::main()
}

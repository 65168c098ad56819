//! Which coordinator to ask and who asks: options, then environment, then the configuration file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::Deserialize;

use crate::errors::{CliError, code, exit};

/// Where a coordinator answers when nothing is configured.
pub const DEFAULT_ADDRESS: &str = "http://127.0.0.1:8265";

/// Largest configuration or token file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// What the command line says about the connection.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--address`.
    pub address: Option<String>,
    /// `--token`.
    pub token: Option<String>,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--ca`.
    pub ca: Option<PathBuf>,
}

/// The connection to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Base of all routes, with the scheme `http` or `https`.
    pub address: Url,
    /// PEM file with the only CA that is trusted; needed for `https`.
    pub ca: Option<PathBuf>,
    /// The API token; `None` sends none.
    pub token: Option<String>,
}

/// `~/.config/gangline/config.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    context: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    address: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
}

/// As [`resolve_unchecked`], for a command that is to talk to the coordinator.
///
/// # Errors
/// Also an https address without a CA.
pub fn resolve(
    options: &Options,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Settings, CliError> {
    let settings = resolve_unchecked(options, env)?;
    if settings.address.scheme() == "https" && settings.ca.is_none() {
        let address = settings.address.as_str().trim_end_matches('/');
        let what = format!("the CA of {address} is not known");
        return Err(CliError::new(exit::INVALID, code::CONFIG, what)
            .why("https without a known CA could be anybody")
            .hint(format!("gangline login {address}, or give its CA with --ca FILE")));
    }
    Ok(settings)
}

/// Find the connection; `env` looks up environment variables.
///
/// A token of the configuration file is sent to the address of its own context only, so that
/// `--address` cannot carry it elsewhere.
///
/// # Errors
/// A file that cannot be read or is wrong, and an address that cannot be used.
pub fn resolve_unchecked(
    options: &Options,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Settings, CliError> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    let context = context(&env)?;
    let own = context.address.clone().unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
    let address = options.address.clone().or_else(|| env("GANGLINE_ADDRESS"));
    let address = parse_address(address.as_deref().unwrap_or(&own))?;
    let is_own = parse_address(&own).is_ok_and(|own| own == address);
    let home = env("HOME");
    let token = if let Some(token) = &options.token {
        Some(token.clone())
    } else if let Some(path) = &options.token_file {
        Some(read_text(path, "the token file")?)
    } else if let Some(token) = env("GANGLINE_TOKEN") {
        Some(token)
    } else if !is_own {
        None
    } else if let Some(path) = &context.token_file {
        Some(read_text(&below_home(path, home.as_deref()), "the token file")?)
    } else {
        context.token
    };
    let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
    let own_ca = context.ca.as_deref().filter(|_| is_own);
    let ca = options.ca.clone().or_else(|| env("GANGLINE_CA").map(PathBuf::from));
    let ca = ca.or_else(|| own_ca.map(|path| below_home(path, home.as_deref())));
    Ok(Settings { address, ca, token })
}

/// Where the configuration file is, or would be.
pub fn file_path(env: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(named) = env("GANGLINE_CONFIG") {
        return Some(PathBuf::from(named));
    }
    let base = env("XDG_CONFIG_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env("HOME")?).join(".config")))?;
    Some(base.join("gangline").join("config.toml"))
}

/// The selected context; an empty one without a file.
fn context(env: &impl Fn(&str) -> Option<String>) -> Result<Context, CliError> {
    let must_exist = env("GANGLINE_CONFIG").is_some();
    let Some(path) = file_path(env).filter(|path| must_exist || path.exists()) else {
        return Ok(Context::default());
    };
    let text = read_text(&path, "the configuration file")?;
    let shown = path.display();
    let file: File = toml::from_str(&text).map_err(|error| {
        CliError::new(exit::INVALID, code::CONFIG, format!("{shown} is not a valid configuration"))
            .why(error.message().to_owned())
            .hint("known: context, and address, ca, token, token_file in [contexts.NAME]")
    })?;
    let selected = match (&file.context, file.contexts.len()) {
        (Some(name), _) => Some(name.clone()),
        (None, 1) => file.contexts.keys().next().cloned(),
        (None, 0) => None,
        (None, _) => {
            let what = format!("{shown} has several contexts and selects none");
            return Err(CliError::new(exit::INVALID, code::CONFIG, what)
                .hint("add a line such as: context = \"NAME\""));
        }
    };
    let Some(name) = selected else {
        return Ok(Context::default());
    };
    file.contexts.get(&name).cloned().ok_or_else(|| {
        let known: Vec<&str> = file.contexts.keys().map(String::as_str).collect();
        CliError::new(exit::INVALID, code::CONFIG, format!("{shown} has no context `{name}`"))
            .hint(format!("contexts there: {}", known.join(", ")))
    })
}

fn below_home(path: &Path, home: Option<&str>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => Path::new(home).join(rest),
        _ => path.to_owned(),
    }
}

fn read_text(path: &Path, what: &str) -> Result<String, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::new(exit::INVALID, code::CONFIG, format!("cannot read {what} {}", path.display()))
            .why(error.to_string())
            .hint("gangline login keeps address and token; --token-file names a file with a token")
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(cannot)?;
    Ok(text)
}

/// Check an address: `https://HOST:PORT`, perhaps with a path before the routes.
fn parse_address(text: &str) -> Result<Url, CliError> {
    let wrong = |what: String| CliError::new(exit::INVALID, code::ADDRESS, what);
    let form = "write it as https://HOST:PORT";
    // Without `//` a host and port would read as a scheme and a path.
    if !text.contains("://") {
        return Err(wrong(format!("`{text}` is not an address"))
            .hint(format!("{form}, or http:// for a coordinator on this machine")));
    }
    let url = Url::parse(text).map_err(|error| {
        wrong(format!("`{text}` is not an address")).why(error.to_string()).hint(form)
    })?;
    match url.scheme() {
        "http" | "https" => {}
        other => return Err(wrong(format!("`{text}`: the scheme {other} is unknown")).hint(form)),
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(wrong(format!("`{text}` names no host")).hint(form));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(wrong("an address has no user, password or query".to_owned())
            .hint("give the token with --token-file or GANGLINE_TOKEN"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn with_file(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (dir, path)
    }

    #[test]
    fn nothing_configured() {
        let settings = resolve(&Options::default(), look(&[])).unwrap();
        assert_eq!(settings.address.as_str(), "http://127.0.0.1:8265/");
        assert_eq!(settings.token, None);
    }

    #[test]
    fn options_win_over_environment_and_file() {
        let (_dir, path) = with_file(
            "context = \"a\"\n[contexts.a]\naddress = \"http://a:1\"\ntoken = \"file\"\n",
        );
        let env = [("GANGLINE_CONFIG", path.as_str())];
        let settings = resolve(&Options::default(), look(&env)).unwrap();
        assert_eq!(
            (settings.address.as_str(), settings.token.as_deref()),
            ("http://a:1/", Some("file"))
        );
        let env = [
            ("GANGLINE_CONFIG", path.as_str()),
            ("GANGLINE_ADDRESS", "http://b:2"),
            ("GANGLINE_TOKEN", "env"),
        ];
        let settings = resolve(&Options::default(), look(&env)).unwrap();
        assert_eq!(
            (settings.address.as_str(), settings.token.as_deref()),
            ("http://b:2/", Some("env"))
        );
        let options = Options {
            address: Some("http://c:3".to_owned()),
            token: Some("option".to_owned()),
            token_file: None,
            ca: None,
        };
        let settings = resolve(&options, look(&env)).unwrap();
        assert_eq!(
            (settings.address.as_str(), settings.token.as_deref()),
            ("http://c:3/", Some("option"))
        );
    }

    #[test]
    fn a_token_of_the_file_stays_with_its_address() {
        let (_dir, path) = with_file("[contexts.a]\naddress = \"http://a:1\"\ntoken = \"file\"\n");
        let options = Options { address: Some("http://other:1".to_owned()), ..Options::default() };
        let env = [("GANGLINE_CONFIG", path.as_str())];
        assert_eq!(resolve(&options, look(&env)).unwrap().token, None);
        let options = Options { address: Some("http://a:1/".to_owned()), ..Options::default() };
        assert_eq!(resolve(&options, look(&env)).unwrap().token.as_deref(), Some("file"));
    }

    #[test]
    fn https_needs_a_known_ca() {
        let (_dir, path) =
            with_file("[contexts.a]\naddress = \"https://a:1\"\nca = \"~/ca.pem\"\n");
        let env = [("GANGLINE_CONFIG", path.as_str()), ("HOME", "/home/a")];
        let settings = resolve(&Options::default(), look(&env)).unwrap();
        assert_eq!(settings.ca.as_deref(), Some(Path::new("/home/a/ca.pem")));
        // The CA of one coordinator says nothing about another.
        let other = Options { address: Some("https://b:1".to_owned()), ..Options::default() };
        let error = resolve(&other, look(&env)).unwrap_err();
        assert_eq!(error.exit(), exit::INVALID);
        let given = Options { ca: Some("/b.pem".into()), ..other };
        assert_eq!(resolve(&given, look(&env)).unwrap().ca.as_deref(), Some(Path::new("/b.pem")));
    }

    #[test]
    fn token_files() {
        let (dir, path) = with_file("[contexts.a]\ntoken_file = \"~/token\"\n");
        std::fs::write(dir.path().join("token"), "secret\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let env = [("GANGLINE_CONFIG", path.as_str()), ("HOME", home)];
        let settings = resolve(&Options::default(), look(&env)).unwrap();
        assert_eq!(settings.token.as_deref(), Some("secret"));
        let options = Options { token_file: Some(dir.path().join("none")), ..Options::default() };
        assert_eq!(resolve(&options, look(&env)).unwrap_err().exit(), exit::INVALID);
    }

    #[test]
    fn wrong_files_are_refused() {
        for text in [
            "contexts = 1",
            "context = \"b\"\n[contexts.a]\n",
            "[contexts.a]\n[contexts.b]\n",
            "[contexts.a]\nadress = \"x\"\n",
        ] {
            let (_dir, path) = with_file(text);
            let error = resolve(&Options::default(), look(&[("GANGLINE_CONFIG", &path)]));
            assert_eq!(error.unwrap_err().exit(), exit::INVALID, "{text}");
        }
    }

    #[test]
    fn addresses() {
        for good in ["http://localhost:8265", "http://[::1]:8265", "http://h/base/"] {
            assert!(parse_address(good).is_ok(), "{good}");
        }
        for bad in ["localhost:8265", "ftp://h", "http://u:p@h", "", "http://"] {
            assert_eq!(parse_address(bad).unwrap_err().exit(), exit::INVALID, "{bad}");
        }
    }
}

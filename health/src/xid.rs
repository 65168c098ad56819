//! Xids: NVIDIA's catalogue in tiers, and what each tier means for the GPU and its job.
//!
//! The table is [`tier`].

use gangline_common::ids::JobId;

use crate::clock::At;
use crate::gpu;
use crate::latch::Bad;
use crate::part::{MAX_APP_XIDS, Part};
use crate::reading::{RecoveryAction, Sxid, Xid};
use crate::rule::{Action, DAY_MS, Level, Rule};

/// The same application Xid in so many jobs within a day is no longer the jobs' fault.
const REPEATED_JOBS: usize = 3;

/// What an Xid means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// The GPU is broken until it is reset or replaced; its job fails.
    Fatal,
    /// The job fails; the node is fine.
    App,
    /// As `App`, and follows from something else: it counts for nothing when it repeats.
    AppFollows,
    /// The job fails; the GPU can be used, and shall be reset after the job.
    AppWatch,
    Info,
    /// Xid 154: the driver says what is needed.
    RecoveryAction,
    /// Xid 144-150: the severity word in the text decides.
    Nvlink5,
    /// Not used by current drivers.
    Unused,
    /// Not in the catalogue that this table was made from.
    Unknown,
}

/// Codes of the fatal tier for which NVIDIA's follow-up is the vendor or the hardware.
const INSPECT: [u32; 5] = [54, 64, 136, 167, 173];

/// The tier of a code, and what the catalogue calls it.
pub fn tier(code: u32) -> (Tier, &'static str) {
    use Tier::{App, AppFollows, AppWatch, Fatal, Info, Nvlink5, Unknown, Unused};
    match code {
        8 => (App, "GPU stopped processing"),
        11 => (App, "invalid or corrupted push buffer stream"),
        13 => (App, "graphics engine exception"),
        14 => (Info, "injected from user space"),
        25 => (App, "invalid or illegal push buffer stream"),
        31 => (App, "GPU memory page fault"),
        32 => (App, "invalid or corrupted push buffer stream"),
        37 | 38 => (Info, "driver firmware error"),
        39..=41 | 70..=72 | 75..=77 | 85 | 126..=135 => (App, "copy engine exception"),
        43 => (Info, "GPU stopped processing for the application's fault"),
        44 => (Info, "graphics engine fault during context switch"),
        45 => (AppFollows, "preemptive clean-up after another error or the end of the application"),
        46 => (Fatal, "GPU stopped processing"),
        48 => (Fatal, "double bit ECC error"),
        54 => (Fatal, "auxiliary power is not connected"),
        60 => (App, "video processor exception"),
        62 => (Fatal, "internal micro-controller halt"),
        63 => (Info, "GPU memory remapping event"),
        64 => (Fatal, "GPU memory remapping failure"),
        66 | 67 => (Info, "illegal access by driver"),
        68 | 83 | 84 | 88 | 89 | 96..=98 => (App, "video decoder exception"),
        69 => (App, "graphics engine class error"),
        74 => (Fatal, "NVLink error"),
        78 => (Fatal, "vGPU start error"),
        79 => (Fatal, "GPU has fallen off the bus"),
        80 => (App, "corrupted data sent to GPU"),
        82 | 99..=105 => (App, "JPEG decoder exception"),
        86 | 139 => (App, "optical flow exception"),
        92 => (Info, "high single-bit ECC error rate"),
        93 => (Info, "InfoROM wear limit"),
        94 => (AppWatch, "contained memory error"),
        95 => (Fatal, "uncontained memory error"),
        106 | 107 => (Info, "SMBPBI test message"),
        108 => (Info, "NVLink remote translation error"),
        109 => (Fatal, "context switch time-out"),
        110 => (Fatal, "security fault"),
        119 => (Fatal, "GSP RPC time-out"),
        120 => (Fatal, "GSP error"),
        121 => (Info, "corrected C2C error"),
        136 => (Fatal, "link training failed"),
        137 => (App, "NVLink privilege error"),
        140 => (Fatal, "unrecovered ECC error"),
        141 => (Info, "CUDA fast path error"),
        142 => (App, "video encoder exception"),
        143 => (Fatal, "GPU initialization error"),
        144 => (Nvlink5, "NVLink SAW error"),
        145 => (Nvlink5, "NVLink RLW error"),
        146 => (Nvlink5, "NVLink TLW error"),
        147 => (Nvlink5, "NVLink TREX error"),
        148 => (Nvlink5, "NVLink NVLPW_CTRL error"),
        149 => (Nvlink5, "NVLink NETIR error"),
        150 => (Nvlink5, "NVLink MSE error"),
        151 => (Fatal, "key rotation error"),
        152 | 153 => (Info, "DLA error"),
        154 => (Tier::RecoveryAction, "GPU recovery action changed"),
        155 => (Fatal, "NVLink software-defined error"),
        156 => (Fatal, "resource retirement event"),
        157 => (Info, "resource retirement failure"),
        158 => (Fatal, "GPU fatal time-out"),
        159 => (App, "CHI non-data error"),
        160 | 161 => (Info, "channel retirement"),
        162..=165 => (Info, "power smoothing"),
        166 | 170 => (Info, "confidential computing"),
        167 => (Fatal, "PCIe fatal time-out"),
        168 => (Info, "reduced memory capacity"),
        169 => (Info, "SEC2 micro-controller halt"),
        171 => (Info, "uncorrectable DRAM error, detail of Xid 48"),
        172 => (Info, "uncorrectable SRAM error, detail of Xid 48"),
        173 => (Fatal, "C2C fatal error"),
        1..=173 => (Unused, "unused"),
        _ => (Unknown, "not in the catalogue"),
    }
}

/// How bad an NVLink5 error says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// `Fatal` and `Link Fatal`: reset the GPU.
    Fatal,
    /// `Non-fatal`: ignore.
    NonFatal,
}

/// The severity word in the kernel's text of Xid 144-150.
pub fn severity(text: &str) -> Option<Severity> {
    let words: String = text
        .chars()
        .map(|c| if c.is_ascii_alphabetic() { c.to_ascii_lowercase() } else { ' ' })
        .collect();
    let words: Vec<&str> = words.split_whitespace().collect();
    let fatal = words.iter().position(|word| *word == "fatal");
    if words.contains(&"nonfatal") {
        return Some(Severity::NonFatal);
    }
    let before = words.get(fatal?.checked_sub(1).unwrap_or(usize::MAX));
    Some(if before == Some(&"non") { Severity::NonFatal } else { Severity::Fatal })
}

/// An Xid on a GPU, or on the node when it is not known on which.
pub(crate) fn on_xid(part: &mut Part, xid: &Xid, at: At) {
    let (tier, name) = tier(xid.code);
    let reason = format!("Xid {}: {name}", xid.code);
    let job = xid.job.as_ref().map_or(String::new(), |job| format!("job {job}; "));
    let text = xid.text.as_deref().unwrap_or("no text");
    let evidence = format!("{job}{text}");
    let bad = |rule: Rule, level: Level| Bad::new(rule, level, reason.clone(), evidence.clone());
    match tier {
        Tier::Fatal => {
            let action = if INSPECT.contains(&xid.code) {
                Action::HardwareInspection
            } else {
                Action::RebootSystem
            };
            part.event(Rule::XidFatal, bad(Rule::XidFatal, Level::Fatal).action(action), at);
        }
        Tier::App | Tier::AppFollows => {
            part.event(Rule::XidApp, bad(Rule::XidApp, Level::Info), at);
            if let (Tier::App, Some(job)) = (tier, &xid.job) {
                repeated(part, xid.code, job, at);
            }
        }
        Tier::AppWatch => part.event(Rule::XidWatch, bad(Rule::XidWatch, Level::DrainAfterJob), at),
        Tier::Nvlink5 => match xid.text.as_deref().and_then(severity) {
            Some(Severity::Fatal) => {
                part.event(Rule::XidFatal, bad(Rule::XidFatal, Level::Fatal), at);
            }
            Some(Severity::NonFatal) => {
                // Some of these are decided by the Xid 154 that follows, with its own rule.
                part.event(Rule::XidInfo, bad(Rule::XidInfo, Level::Info), at);
            }
            None => part.event(Rule::XidNvlink, bad(Rule::XidNvlink, Level::Warning), at),
        },
        Tier::RecoveryAction => match xid.text.as_deref().and_then(RecoveryAction::from_xid_154) {
            Some(RecoveryAction::None) => {
                part.event(Rule::XidInfo, bad(Rule::XidInfo, Level::Info), at);
            }
            Some(action) => {
                if let Some(verdict) = gpu::recovery(action) {
                    let verdict = Bad { evidence, ..verdict };
                    part.event(Rule::RecoveryAction, verdict, at);
                }
            }
            None => part.event(Rule::XidNvlink, bad(Rule::XidNvlink, Level::Warning), at),
        },
        Tier::Info | Tier::Unused | Tier::Unknown => {
            part.event(Rule::XidInfo, bad(Rule::XidInfo, Level::Info), at);
        }
    }
}

/// Counts the jobs that met this Xid here within a day.
fn repeated(part: &mut Part, code: u32, job: &JobId, at: At) {
    part.app_xids.retain(|(_, _, then)| at.since(*then) < DAY_MS);
    if part.app_xids.iter().any(|(c, j, _)| *c == code && j == job) {
        return;
    }
    if part.app_xids.len() >= MAX_APP_XIDS {
        part.app_xids.pop_front();
    }
    part.app_xids.push_back((code, job.clone(), at.ms));
    let jobs: Vec<&str> =
        part.app_xids.iter().filter(|(c, ..)| *c == code).map(|(_, job, _)| job.as_str()).collect();
    if jobs.len() >= REPEATED_JOBS {
        let reason = format!("Xid {code} in {} jobs within a day", jobs.len());
        let bad = Bad::new(Rule::XidRepeated, Level::Degraded, reason, jobs.join(", "));
        part.event(Rule::XidRepeated, bad, at);
    }
}

pub(crate) fn on_sxid(part: &mut Part, sxid: &Sxid, at: At) {
    let level = if sxid.fatal { Level::Fatal } else { Level::Info };
    let word = if sxid.fatal { "fatal" } else { "non-fatal" };
    let reason = format!("SXid {}, {word}", sxid.code);
    part.event(Rule::Sxid, Bad::new(Rule::Sxid, level, reason, sxid.switch.as_str()), at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_of_the_policy() {
        let fatal = [
            79, 48, 95, 140, 64, 158, 143, 119, 120, 62, 46, 109, 110, 136, 155, 156, 74, 54, 151,
            78, 167, 173,
        ];
        let app = [13, 31, 32, 11, 25, 69, 80, 8, 137, 39, 41, 70, 72, 75, 77, 85, 126, 135];
        let info =
            [63, 92, 93, 43, 44, 37, 38, 66, 67, 106, 107, 121, 141, 152, 153, 157, 160, 161];
        for (codes, expected) in
            [(&fatal[..], Tier::Fatal), (&app[..], Tier::App), (&info[..], Tier::Info)]
        {
            for code in codes {
                assert_eq!(tier(*code).0, expected, "Xid {code}");
            }
        }
        assert_eq!(tier(94).0, Tier::AppWatch);
        assert_eq!(tier(45).0, Tier::AppFollows);
        assert_eq!(tier(154).0, Tier::RecoveryAction);
        assert!((144..=150).all(|code| tier(code).0 == Tier::Nvlink5));
        assert_eq!(
            (tier(1).0, tier(174).0, tier(0).0),
            (Tier::Unused, Tier::Unknown, Tier::Unknown)
        );
    }

    #[test]
    fn the_severity_word_of_nvlink5() {
        for (text, expected) in [
            ("RLW_REMAP Nonfatal XC1 i0 Link 02 (0x001)", Some(Severity::NonFatal)),
            ("SAW_MVB Non-fatal", Some(Severity::NonFatal)),
            ("NETIR_LINK_DOWN Link Fatal link 3", Some(Severity::Fatal)),
            ("RLW_REMAP Fatal XC0 i0 Link 00", Some(Severity::Fatal)),
            ("Fatal", Some(Severity::Fatal)),
            ("NETIR_LINK_EVT link 3", None),
            ("", None),
        ] {
            assert_eq!(severity(text), expected, "{text}");
        }
    }
}

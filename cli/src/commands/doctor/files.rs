//! Checks the surroundings of a `sqlite:` store's files.

use super::Report;
use crate::{place, text};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use workglow_limit::admin::Severity;

/// Below this free space there is a warning.
const LITTLE_SPACE: u64 = 256 << 20;
/// Below this free space there is a danger.
const NO_SPACE: u64 = 8 << 20;

pub fn look(url: &str, report: &mut Report) {
    let Some(database) = place::database(url) else { return };
    let directory = database.parent().unwrap_or(Path::new("/"));
    report.fact("database", database.display().to_string());
    for (what, path) in [("file", database.clone()), ("lane", place::lane(&database))] {
        if let Ok(found) = std::fs::metadata(&path) {
            report.fact(what, format!("{}, {}", text::bytes(found.size()), place::owner(&found)));
            who_may_write(&path, &found, report);
        }
    }
    if let Ok(found) = std::fs::metadata(directory) {
        who_may_replace(directory, &found, report);
        file_system(directory, report);
        free_space(directory, report);
    }
    largest_file(report);
    clock(report);
}

/// A user who may write to the files controls the limits' decisions.
fn who_may_write(path: &Path, found: &Metadata, report: &mut Report) {
    if found.mode() & 0o002 != 0 {
        report.find(
            Severity::Danger,
            &path.display().to_string(),
            format!("writable by all users (mode {:04o})", found.mode() & 0o7777),
            "any user of this machine can change the limits' decisions, or damage the store",
            "chmod o-rwx; to share the store with a group, use the store's option mode with 0660",
        );
    }
}

fn who_may_replace(directory: &Path, found: &Metadata, report: &mut Report) {
    if found.mode() & 0o002 != 0 && found.mode() & libc::S_ISVTX == 0 {
        report.find(
            Severity::Danger,
            &directory.display().to_string(),
            format!("writable by all users (mode {:04o})", found.mode() & 0o7777),
            "any user of this machine can remove or replace the store's files",
            "chmod o-w, or use a separate directory for the store",
        );
    }
}

/// The names of known file systems.
fn name_of(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x794c_7630 => "overlay",
        0x0000_6969 => "NFS",
        0x0000_517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE",
        0x4d44 => "FAT",
        _ => return None,
    })
}

fn file_system(directory: &Path, report: &mut Report) {
    // SAFETY: a zeroed `statfs` is valid.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, and `answer` is a valid pointer.
    if place::with_path(directory, |path| unsafe { libc::statfs(path, &mut answer) }).is_err() {
        return;
    }
    let kind = answer.f_type as u32;
    let name = name_of(kind).map_or_else(|| format!("of the type {kind:#x}"), str::to_owned);
    report.fact("file system", name.clone());
    match name.as_str() {
        "tmpfs" | "ramfs" => report.find(
            Severity::Warning,
            "the file system",
            name,
            "it is in memory: a reboot loses past starts, declared limits and overrides",
            "use a directory on a disk, such as /var/lib/NAME",
        ),
        "overlay" => report.find(
            Severity::Note,
            "the file system",
            name,
            "it is the layer of one container: other containers cannot see it, and it is deleted with the container",
            "use a directory that is mounted into all containers that share the limits",
        ),
        // Network file systems are refused when the store is opened.
        _ => {}
    }
}

fn free_space(directory: &Path, report: &mut Report) {
    // SAFETY: a zeroed `statvfs` is valid.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, and `answer` is a valid pointer.
    if place::with_path(directory, |path| unsafe { libc::statvfs(path, &mut answer) }).is_err() {
        return;
    }
    if answer.f_flag & libc::ST_RDONLY != 0 {
        let what = "the store cannot be written";
        report.find(Severity::Danger, "the file system", "read-only", what, "mount it writable, or move the store");
    }
    // The types differ between platforms.
    #[allow(clippy::unnecessary_cast)]
    let free = (answer.f_bavail as u64).saturating_mul(answer.f_frsize as u64);
    report.fact("free space", text::bytes(free));
    if free < LITTLE_SPACE {
        let severity = if free < NO_SPACE { Severity::Danger } else { Severity::Warning };
        let what =
            "on a full disk starts of long windows fail (the option on_error decides), and new keys cannot be added";
        report.find(severity, "free space", text::bytes(free), what, "free space on this disk");
    }
    #[allow(clippy::unnecessary_cast)]
    let (files, free_files) = (answer.f_files as u64, answer.f_favail as u64);
    if files > 0 && free_files < 16 {
        let what = "each commit creates a file, the database's journal";
        report.find(Severity::Danger, "free inodes", text::count(free_files), what, "remove files from this disk");
    }
}

/// `ulimit -f` of this process; other programs may have another limit.
fn largest_file(report: &mut Report) {
    // SAFETY: a zeroed `rlimit` is valid.
    let mut answer: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` is a valid pointer.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut answer) } == 0 && answer.rlim_cur != libc::RLIM_INFINITY {
        report.find(
            Severity::Warning,
            "the limit on file sizes (ulimit -f)",
            text::bytes(answer.rlim_cur),
            "the store cannot grow beyond it: decisions that need more fail",
            "set ulimit -f unlimited, or LimitFSIZE=infinity in a systemd unit",
        );
    }
}

/// Whether the wall clock is synchronised. Only aligned windows depend on it.
fn clock(report: &mut Report) {
    // SAFETY: a zeroed `timex` is valid, and requests no change.
    let mut answer: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `answer` is a valid pointer.
    match unsafe { libc::adjtimex(&mut answer) } {
        -1 => {}
        libc::TIME_ERROR => {
            report.fact("clock", "not synchronised");
            report.find(
                Severity::Note,
                "the wall clock",
                "not synchronised",
                "fixed and counter windows are aligned to it, and records show its times; other limits use the monotonic clock",
                "run chrony, ntpd or systemd-timesyncd",
            );
        }
        _ => report.fact("clock", "synchronised"),
    }
}

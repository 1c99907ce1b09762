//! The identity of this process for other processes of its machine, by which they can ask their kernel whether it is
//! alive.
//!
//! A process is identified by its number and its start time, since numbers are reused. Both have a meaning only for
//! processes that see each other, by the same clock: in one boot of one kernel, and in the same namespaces of processes
//! and of time. A *site* is derived from these. If any of them is unknown, the site is 0, and no process there is ever
//! considered dead.
//!
//! A process of another site is never considered dead. (A copy of a running virtual machine is a second machine with
//! the same site, so do not copy one that holds leases.)

use super::MAX;
use crate::fault;
use crate::fork::PerProcess;
use crate::os::time_namespace;
use siphasher::sip::SipHasher13;
use std::fs;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt;

/// The identity of a process within its site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// 0: unknown.
    pub site: u64,
    pub number: u64,
    /// In ticks of the kernel since its boot.
    pub began: u64,
}

impl Process {
    /// The identity of this process.
    pub fn this() -> Process {
        static THIS: PerProcess<Option<Process>> = PerProcess::new();
        *THIS.lock().get_or_insert_with(|| Process::found().unwrap_or_default())
    }

    fn found() -> Option<Process> {
        let number = u64::from(std::process::id());
        // The files may belong to another namespace than this process's.
        if fs::read_link("/proc/self").ok()?.to_str()? != number.to_string() {
            return None;
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let (processes, time) = (fs::metadata("/proc/self/ns/pid").ok()?, time_namespace());
        let mut site = SipHasher13::new();
        site.write(boot.trim().as_bytes());
        site.write(fault::site().as_bytes());
        [processes.dev(), processes.ino(), time].iter().for_each(|n| site.write_u64(*n));
        let began = ProcessInfo::at(number)?.began;
        Some(Process { site: (site.finish() & MAX).max(1), number, began })
    }

    /// Returns whether it has ended. Only for a process of this one's site; false if that cannot be determined.
    pub fn is_dead(&self) -> bool {
        let Ok(number @ 1..) = i32::try_from(self.number) else { return false };
        // SAFETY: signal 0 is not sent; the call only checks whether there is such a process.
        let answer = unsafe { libc::kill(number, 0) };
        if answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return true;
        }
        // Another process may have its number by now. (It may be invisible, where processes are hidden from others.)
        ProcessInfo::at(self.number).is_some_and(|looks| looks.began != self.began || looks.has_ended)
    }
}

/// The kernel's information about a process.
struct ProcessInfo {
    began: u64,
    /// It has ended, and its exit status has not been collected.
    has_ended: bool,
}

impl ProcessInfo {
    fn at(process: u64) -> Option<ProcessInfo> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in parentheses, may contain anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let (state, threads) = (fields.first()?, fields.get(17)?.parse::<u64>().ok()?);
        // A process whose first thread has ended looks the same, but has other threads.
        let has_ended = ["Z", "X"].contains(state) && threads <= 1;
        Some(ProcessInfo { began: fields.get(19)?.parse().ok()?, has_ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_dead_once_it_has_ended() {
        let this = Process::this();
        assert!(this.site > 0 && !this.is_dead(), "{this:?}");
        assert!(Process { began: this.began + 1, ..this }.is_dead(), "another process has its number");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let number = u64::from(child.id());
        let child_looks = Process { number, began: ProcessInfo::at(number).unwrap().began, ..this };
        assert!(!child_looks.is_dead());
        child.kill().unwrap();
        while !child_looks.is_dead() {
            std::thread::yield_now();
        }
        // Its exit status has not been collected until here.
        child.wait().unwrap();
        assert!(child_looks.is_dead());
        assert!(!Process { number: 0, ..this }.is_dead());
    }
}

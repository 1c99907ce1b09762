//! Who this process is to the others of its machine: so they can ask their kernel whether it lives.
//!
//! A process is known by its number and by when it began, because numbers are used again. Both mean something only to processes that
//! see each other, by the same clock: in one boot of one kernel, and in the same namespaces of processes and of time. Of these a *site*
//! is made. Where anything of it cannot be found out, the site is 0, and nobody there takes anybody for dead.
//!
//! A process of another site is never taken for dead. (A running virtual machine that is copied is two machines of one site:
//! so do not copy one that holds leases.)

use super::MOST;
use crate::fault;
use crate::fork::PerProcess;
use crate::state::time_namespace;
use siphasher::sip::SipHasher13;
use std::fs;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt;

/// A process, as others of its site see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// 0: unknown.
    pub site: u64,
    pub number: u64,
    /// In ticks of the kernel since it was booted.
    pub began: u64,
}

impl Process {
    /// This one.
    pub fn this() -> Process {
        static THIS: PerProcess<Option<Process>> = PerProcess::new();
        *THIS.lock().get_or_insert_with(|| Process::found().unwrap_or_default())
    }

    fn found() -> Option<Process> {
        let number = u64::from(std::process::id());
        // The files may be those of another namespace than this process's.
        if fs::read_link("/proc/self").ok()?.to_str()? != number.to_string() {
            return None;
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let (processes, time) = (fs::metadata("/proc/self/ns/pid").ok()?, time_namespace());
        let mut site = SipHasher13::new();
        site.write(boot.trim().as_bytes());
        site.write(fault::site().as_bytes());
        [processes.dev(), processes.ino(), time].iter().for_each(|n| site.write_u64(*n));
        let began = Looks::at(number)?.began;
        Some(Process { site: (site.finish() & MOST).max(1), number, began })
    }

    /// Has it ended? Only for a process of this one's site; not if that cannot be seen.
    pub fn is_dead(&self) -> bool {
        let Ok(number @ 1..) = i32::try_from(self.number) else { return false };
        // SAFETY: signal 0 is none; it is only asked whether there is such a process.
        let answer = unsafe { libc::kill(number, 0) };
        if answer != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return true;
        }
        // Another one may have its number by now. (It may not be seen, where processes are hidden from others.)
        Looks::at(self.number).is_some_and(|looks| looks.began != self.began || looks.has_ended)
    }
}

/// What the kernel says of a process.
struct Looks {
    began: u64,
    /// Nobody has asked yet how it ended.
    has_ended: bool,
}

impl Looks {
    fn at(process: u64) -> Option<Looks> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in parentheses, may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let (state, threads) = (fields.first()?, fields.get(17)?.parse::<u64>().ok()?);
        // (One whose first thread has ended looks the same, but it has others.)
        let has_ended = ["Z", "X"].contains(state) && threads <= 1;
        Some(Looks { began: fields.get(19)?.parse().ok()?, has_ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_dead_once_it_has_ended_and_not_before() {
        let this = Process::this();
        assert!(this.site > 0 && !this.is_dead(), "{this:?}");
        assert!(Process { began: this.began + 1, ..this }.is_dead(), "another one has its number");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let number = u64::from(child.id());
        let child_looks = Process { number, began: Looks::at(number).unwrap().began, ..this };
        assert!(!child_looks.is_dead());
        child.kill().unwrap();
        while !child_looks.is_dead() {
            std::thread::yield_now();
        }
        // Nobody has asked how it ended until here.
        child.wait().unwrap();
        assert!(child_looks.is_dead());
        assert!(!Process { number: 0, ..this }.is_dead());
    }
}

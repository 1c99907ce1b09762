//! How much memory this process may have: its machine's, or its container's if that is less.

use std::path::Path;
use std::sync::OnceLock;

/// Where the hierarchies of control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The memory in bytes that this process may have. It is read once.
pub(crate) fn available() -> u64 {
    static READ: OnceLock<u64> = OnceLock::new();
    *READ.get_or_init(|| {
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        let group = read(Path::new("/proc/self/cgroup")).and_then(|groups| least(&groups, &read));
        machine().min(group.unwrap_or(u64::MAX))
    })
}

/// The memory of the machine.
fn machine() -> u64 {
    // SAFETY: plain calls. They return -1 if the number is not known.
    let [pages, size] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    match (u64::try_from(pages), u64::try_from(size)) {
        (Ok(pages), Ok(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}

/// The smallest limit of the control groups in `/proc/self/cgroup`, and of those around them. A container may see the
/// names that its groups have outside, while its own group is mounted at the top.
fn least(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (hierarchy, file, group) = match line.splitn(3, ':').collect::<Vec<_>>()[..] {
            [_, "", group] => ("", "memory.max", group),
            [_, of, group] if of.split(',').any(|one| one == "memory") => ("memory", "memory.limit_in_bytes", group),
            _ => return None,
        };
        let top = Path::new(MOUNT).join(hierarchy);
        let around = Path::new(group.trim_start_matches('/')).ancestors();
        // Without a limit, a file says "max", or a number that no machine has.
        around.filter_map(|path| read(&top.join(path).join(file))?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        least(groups, &|path| files.iter().find(|(at, _)| Path::new(at) == path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn the_smallest_limit_of_all_groups_around_a_process_applies() {
        let files = [
            ("/sys/fs/cgroup/memory.max", "max\n"),
            ("/sys/fs/cgroup/a.slice/memory.max", "536870912\n"),
            ("/sys/fs/cgroup/a.slice/b.service/memory.max", "1073741824\n"),
        ];
        assert_eq!(limit("0::/a.slice/b.service\n", &files), Some(512 << 20));
        assert_eq!(limit("0::/\n", &files), None);
        assert_eq!(limit("0::/\n", &[("/sys/fs/cgroup/memory.max", "268435456\n")]), Some(256 << 20));
    }

    #[test]
    fn a_container_that_sees_the_names_outside_has_its_limit_at_the_top() {
        let groups = "11:cpu,cpuacct:/docker/0a\n9:memory:/docker/0a\n1:name=systemd:/docker/0a\n0::/docker/0a\n";
        assert_eq!(limit(groups, &[("/sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n")]), Some(128 << 20));
        assert_eq!(limit(groups, &[]), None);
        assert_eq!(limit("", &[("/sys/fs/cgroup/memory.max", "1\n")]), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available() >= 64 << 20, "{}", available());
    }
}

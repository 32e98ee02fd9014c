//! The system calls that each kind of thread makes once the program has started, and what needs them: the tables that the filters are
//! made of.
//!
//! A thread may also make the calls of the threads that it starts, because a thread inherits the filter of its creator and can only narrow
//! it. So the tables name, for each kind, the kinds that it starts ([`starts`]), and [`allowed`] adds their calls.
//!
//! A filter sees the number of a call and its register arguments, never memory: no path, no flag of `clone3`, no operation of an io_uring.
//! Other means limit these: Landlock the paths, the restrictions of each ring its operations. `clone3` is answered with ENOSYS.

use std::collections::BTreeMap;

use libc::c_long;
use paradisk_disk_formats::ThreadKind;

use crate::mode::Program;
use Test::{Has, Is, Lacks, Not, Null, Own};

/// A condition on an argument, of which the lower 32 bits count, but for `Null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Argument N has this value.
    Is(u8, u32),
    /// Argument N does not have this value.
    Not(u8, u32),
    /// Argument N has all of these bits.
    Has(u8, u32),
    /// Argument N has none of these bits.
    Lacks(u8, u32),
    /// Argument N is the number of this process.
    Own(u8),
    /// Argument N, an address, is 0 in all 64 bits.
    Null(u8),
}

/// A call that is allowed. Rules of one call are alternatives; all tests of a rule must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) number: c_long,
    /// Name of the constant.
    pub(crate) name: &'static str,
    pub(crate) tests: &'static [Test],
    /// What needs it.
    pub(crate) why: &'static str,
}

macro_rules! rules {
    ($($(#[$doc:meta])* $table:ident { $($call:ident $([$($test:expr),+])? $why:literal;)* })*) => {
        $($(#[$doc])* const $table: &[Rule] = &[$(Rule {
            number: libc::$call,
            name: stringify!($call),
            tests: &[$($($test),+)?],
            why: $why,
        }),*];)*
    };
}

/// A kind of thread, as far as filters differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The main thread, after the start.
    Main(Program),
    /// Another thread.
    Thread(ThreadKind),
}

const EXEC: u32 = libc::PROT_EXEC as u32;
const THREAD: u32 = libc::CLONE_THREAD as u32;
/// A flag of the calls that send: connect to the address first, where neither the table nor Landlock sees a connect.
const FAST_OPEN: u32 = libc::MSG_FASTOPEN as u32;

/// A request of KVM (include/uapi/linux/kvm.h): direction, number, size of the argument (`_IOC` of include/uapi/asm-generic/ioctl.h).
const fn kvm(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | 0xae << 8 | number
}

/// The same of block devices (include/uapi/linux/fs.h).
const fn blk(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | 0x12 << 8 | number
}

/// include/uapi/linux/io_uring.h.
const IORING_UNREGISTER_FILES: u32 = 3;

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Of a virtual CPU's thread: the guest runs until its next exit to user space.
pub(crate) const KVM_RUN: u32 = kvm(NONE, 0x80, 0);

rules! {
    /// Every thread: memory, locks, time, signals, messages, its end. Memory never becomes code.
    EVERY {
        SYS_read "descriptors that are open: eventfds, files, sockets";
        SYS_write "the same; standard error";
        SYS_writev "the same";
        SYS_close "descriptors that are no longer needed";
        SYS_futex "locks, channels, joins";
        SYS_poll "whether standard error takes the message about a call that is not allowed";
        SYS_mmap [Lacks(2, EXEC)] "allocations; a client's memory; the handler of SIGBUS";
        SYS_mprotect [Lacks(1, EXEC)] "guard pages of stacks, and the allocator's arenas";
        SYS_munmap "allocations";
        SYS_mremap "allocations that grow";
        SYS_madvise "allocations; stacks of threads that end; disks in memory";
        SYS_brk "allocations";
        SYS_rt_sigaction [Not(0, libc::SIGSYS as u32)] "the handler of SIGBUS; abort. Nobody replaces the handler that ends the process";
        SYS_rt_sigprocmask "start and end of threads, abort";
        SYS_rt_sigreturn "the end of each signal handler";
        SYS_sigaltstack "start and end of threads";
        SYS_sendto [Null(4), Lacks(3, FAST_OPEN)] "a signal handler wakes the thread that waits for signals; replies. To the peer alone";
        SYS_recvfrom "that thread; requests and commands";
        SYS_recvmsg "what clients send; the descriptors that come with it are closed by a thread of their own";
        SYS_shutdown "the end of a connection";
        SYS_clock_gettime "time, where the vDSO has none";
        SYS_clock_nanosleep "pauses";
        SYS_nanosleep "pauses";
        SYS_restart_syscall "the kernel goes on with a call after a signal";
        SYS_sched_yield "spinning";
        SYS_getrandom "seeds of hash tables, GUIDs of images";
        SYS_gettid "abort, locks, log messages";
        SYS_getpid "abort";
        SYS_tgkill [Own(0)] "abort; signals to virtual CPUs. To this process alone";
        SYS_fcntl [Is(1, libc::F_GETFD as u32)] "debug builds check descriptors that they close";
        SYS_exit "the end of a thread";
        SYS_exit_group "the end of the process";
    }

    /// Threads that start others. Only threads: fork, and with it new namespaces, lacks the flag.
    STARTS_THREADS {
        SYS_clone [Has(0, THREAD)] "the new thread";
        SYS_set_robust_list "start of a thread (glibc)";
        SYS_rseq "start of a thread (glibc)";
        SYS_prctl [Is(0, libc::PR_SET_NAME as u32)] "name of a thread";
        SYS_sched_getaffinity "start of a thread: pthread_getattr_np, for the guard page";
        SYS_prctl [Is(0, libc::PR_SET_NO_NEW_PRIVS as u32)] "before its own filter";
        SYS_seccomp [Is(0, libc::SECCOMP_SET_MODE_FILTER), Is(1, 0)] "its own, narrower filter";
    }

    /// Contents of images and block devices.
    DISK {
        SYS_pread64 "metadata";
        SYS_pwrite64 "metadata";
        SYS_preadv "data: the engine with threads, and transfers that a queue makes itself";
        SYS_pwritev "the same";
        SYS_preadv2 "the same";
        SYS_pwritev2 "the same, with FUA";
        SYS_fdatasync "flushes";
        SYS_fadvise64 [Is(3, libc::POSIX_FADV_DONTNEED as u32)] "forget what a failed flush has lost";
        SYS_fallocate "space for blocks; discard";
        SYS_ftruncate "images that grow";
        SYS_lseek "size of a device; holes";
        SYS_fstat "size of a file";
        SYS_fcntl [Is(1, libc::F_OFD_SETLK as u32)] "locks of images, which the last close releases";
        SYS_fcntl [Is(1, libc::F_OFD_GETLK as u32)] "the same";
        SYS_ioctl [Is(1, blk(NONE, 119, 0))] "BLKDISCARD";
        SYS_ioctl [Is(1, blk(NONE, 127, 0))] "BLKZEROOUT";
        SYS_ioctl [Is(1, blk(READ, 114, 8))] "BLKGETSIZE64: a device that has grown";
    }

    /// Threads that run queues of disks.
    QUEUE {
        SYS_io_uring_enter "one for each batch of requests";
        SYS_epoll_wait "sleep until there is something to do";
        SYS_epoll_pwait "the same";
        SYS_epoll_pwait2 "the same";
        SYS_epoll_ctl "descriptors to wait for come and go";
        SYS_poll "sleep";
        SYS_ppoll "sleep";
        SYS_timerfd_settime "disks with `delay=`";
        SYS_epoll_create1 "a new set of descriptors when disks come and go";
        SYS_io_uring_register [Is(1, IORING_UNREGISTER_FILES)] "the end of a ring: its files are closed at once, and their locks released";
    }

    /// The thread that makes all rings. It takes no input of guests, clients or images.
    RING_MAKER {
        SYS_io_uring_setup "a ring";
        SYS_io_uring_register "its files, its restrictions";
        SYS_eventfd2 "signals between threads";
        SYS_pipe2 "tells when a ring is torn down";
    }

    /// Threads that make queues: for clients, for disks that are attached, for the flush at the end.
    QUEUE_SETUP {
        SYS_eventfd2 "signals between threads";
        SYS_epoll_create1 "a set of descriptors to wait for";
        SYS_timerfd_create "disks with `delay=`";
        SYS_fstatfs "which transfers a queue makes itself";
        SYS_fcntl [Is(1, libc::F_DUPFD_CLOEXEC as u32)] "a copy of a descriptor";
    }

    /// A virtual CPU.
    VCPU {
        SYS_ioctl [Is(1, KVM_RUN)] "the guest runs";
        SYS_ioctl [Is(1, kvm(WRITE, 0x79, 64))] "KVM_IOEVENTFD: doorbells, when the guest moves base address registers";
        SYS_ioctl [Is(1, kvm(READ, 0x81, 144))] "KVM_GET_REGS: hypercalls, instructions that KVM does not know, halt check";
        SYS_ioctl [Is(1, kvm(WRITE, 0x82, 144))] "KVM_SET_REGS: the same";
        SYS_ioctl [Is(1, kvm(READ, 0x83, 312))] "KVM_GET_SREGS: the same";
        SYS_ioctl [Is(1, kvm(READ | WRITE, 0x85, 24))] "KVM_TRANSLATE: the bytes of such an instruction";
        SYS_ioctl [Is(1, kvm(READ, 0x8c, 416))] "KVM_GET_FPU: the same";
        SYS_ioctl [Is(1, kvm(READ, 0x98, 4))] "KVM_GET_MP_STATE: halt check";
        SYS_ioctl [Is(1, kvm(READ, 0x9f, 64))] "KVM_GET_VCPU_EVENTS: exceptions of such an instruction";
        SYS_ioctl [Is(1, kvm(WRITE, 0xa0, 64))] "KVM_SET_VCPU_EVENTS: the same";
        SYS_pread64 "its CPU time, when it ends";
    }

    /// Threads that call devices of a machine.
    MACHINE {
        SYS_ioctl [Is(1, kvm(WRITE, 0xa5, 32))] "KVM_SIGNAL_MSI: interrupts";
        SYS_ioctl [Is(1, kvm(WRITE, 0x76, 32))] "KVM_IRQFD: interrupts by eventfd";
        SYS_ioctl [Is(1, kvm(WRITE, 0x6a, 8))] "KVM_SET_GSI_ROUTING: the same";
        SYS_eventfd2 "an interrupt's eventfd";
    }

    /// Threads that raise interrupts by their line.
    LINES {
        SYS_ioctl [Is(1, kvm(WRITE, 0x61, 8))] "KVM_IRQ_LINE: interrupts; a character that is typed";
    }

    /// Threads that wait for clients.
    LISTENER {
        SYS_accept4 "a client";
        SYS_poll "sleep until one comes";
        SYS_ppoll "the same";
        SYS_setsockopt "TCP_NODELAY, SO_KEEPALIVE";
        SYS_getpeername "connections of one peer are limited";
        SYS_shutdown "a connection that is refused or closed";
    }

    /// Threads that speak with clients.
    CLIENT {
        SYS_recvmsg "requests; descriptors of memory and eventfds";
        SYS_sendmsg [Lacks(2, FAST_OPEN)] "replies";
        SYS_readv "requests";
        SYS_poll "sleep until the client sends or receives";
        SYS_ppoll "the same";
        SYS_shutdown "the end of a connection";
        SYS_ioctl [Is(1, libc::FIONBIO as u32)] "sockets that do not block";
        SYS_fcntl [Is(1, libc::F_DUPFD_CLOEXEC as u32)] "a copy of a descriptor";
    }

    /// Threads that map memory of clients.
    CLIENT_MEMORY {
        SYS_fstat "what a client's descriptor is";
        SYS_lseek "the size of a client's memory";
        SYS_getsockopt "what a client sends for messages to it is a socket (the crate `vhost`)";
        SYS_readlinkat "whether a descriptor is an eventfd";
        SYS_fcntl [Is(1, libc::F_GET_SEALS as u32)] "whether a client's memory is in a memfd, tmpfs or hugetlbfs";
        SYS_socketpair [Is(0, libc::AF_UNIX as u32)] "messages that have been checked go to the crate `vhost` by a socket of its own";
        SYS_memfd_create "requests in flight, in memory of the client (vhost-user)";
        SYS_ftruncate "the same";
        SYS_fcntl [Is(1, libc::F_ADD_SEALS as u32)] "the same";
        SYS_preadv2 "wakes a thread that signals a client";
    }

    /// The thread of a queue that starts a notifier.
    STARTS_NOTIFIER {
        SYS_fcntl [Is(1, libc::F_DUPFD_CLOEXEC as u32)] "a copy of the client's eventfd";
    }

    /// A thread that signals a client's eventfd.
    NOTIFIER {
        SYS_ppoll "whether its last write would sleep";
    }

    /// A thread that closes a client's descriptor.
    CLOSE {
        SYS_setsockopt [Is(2, libc::SO_LINGER as u32)] "a socket that is closed does not linger";
    }

    /// The control socket of a server: growing disks is done on this thread.
    CONTROL {
        SYS_setsockopt "timeouts";
        SYS_sendmsg [Lacks(2, FAST_OPEN)] "a vhost-user client is told of a new capacity";
    }

    /// The thread that serves metrics: a server's reads the state of disks by itself.
    METRICS {
        SYS_fstat "size of a disk's file";
    }

    /// The end of a program: sockets are removed.
    END {
        SYS_flock "the folder of a socket is locked while its file is removed";
        SYS_getdents64 "whether the file is this server's: the number of its inode";
        SYS_unlinkat "the socket's file";
        SYS_accept4 "clients that wait to be accepted are disconnected";
    }

    /// A main thread that opens images for `paradisk ctl attach`. Landlock says where images may be opened. It does not limit who may ask for
    /// the attributes of a file.
    ATTACHES {
        SYS_openat "images that are attached";
        SYS_newfstatat "files before they are opened";
        SYS_statx "the same";
        SYS_utimensat [Null(1)] "the probe for discard leaves the modification time of a file. Of one that is open";
        SYS_readlink "the folder of an image, where its parents are looked for";
        SYS_readlinkat "the same";
        SYS_getcwd "the same";
        SYS_faccessat2 "the folder before a `..` of a parent's path";
        SYS_accept4 "clients of that socket that wait to be accepted are disconnected";
        SYS_fcntl [Is(1, libc::F_GETFL as u32)] "files that were passed open";
        SYS_fcntl [Is(1, libc::F_SETFL as u32)] "the same";
        SYS_dup3 "the same: the number stays when they are opened again";
        SYS_ioctl [Is(1, blk(NONE, 104, 0))] "BLKSSZGET: a block device that is attached";
        SYS_ioctl [Is(1, blk(NONE, 123, 0))] "BLKPBSZGET: the same";
    }

    /// A machine's main thread.
    MACHINE_MAIN {
        SYS_ioctl [Is(1, libc::TCGETS as u32)] "the terminal is restored";
        SYS_ioctl [Is(1, libc::TCSETS as u32)] "the same";
        SYS_ioctl [Is(1, libc::TCGETS2 as u32)] "the same";
        SYS_ioctl [Is(1, libc::TCSETS2 as u32)] "the same";
        SYS_ioctl [Is(1, libc::TIOCGPGRP as u32)] "whether the terminal is another job's";
        SYS_getpgrp "the same";
    }
}

/// Calls that are refused with EACCES. The caller then continues without the file: the allocator reads files of /proc and /sys to tune
/// itself, and a panic reads the program's symbols. If the tables of a kind have such a call, the kind may make it.
pub(crate) const REFUSED: &[(c_long, &str)] = &[
    (libc::SYS_open, "SYS_open"),
    (libc::SYS_openat, "SYS_openat"),
    (libc::SYS_stat, "SYS_stat"),
    (libc::SYS_lstat, "SYS_lstat"),
    (libc::SYS_newfstatat, "SYS_newfstatat"),
    (libc::SYS_statx, "SYS_statx"),
    (libc::SYS_access, "SYS_access"),
    (libc::SYS_faccessat, "SYS_faccessat"),
    (libc::SYS_faccessat2, "SYS_faccessat2"),
    (libc::SYS_readlink, "SYS_readlink"),
    (libc::SYS_readlinkat, "SYS_readlinkat"),
    (libc::SYS_getcwd, "SYS_getcwd"),
];

/// The tables of a kind, without the threads that it starts.
fn own(kind: Kind) -> &'static [&'static [Rule]] {
    use ThreadKind::*;
    match kind {
        Kind::Main(Program::Run) => &[EVERY, END, MACHINE_MAIN, MACHINE, LINES, DISK, QUEUE, QUEUE_SETUP],
        Kind::Main(Program::RunAttaching) => {
            &[EVERY, END, MACHINE_MAIN, ATTACHES, MACHINE, LINES, DISK, QUEUE, QUEUE_SETUP]
        }
        Kind::Main(Program::Nbd | Program::VfioUser) => &[EVERY, END, DISK, QUEUE, QUEUE_SETUP],
        Kind::Main(Program::VhostUser) => &[EVERY, END, LISTENER, DISK, QUEUE, QUEUE_SETUP],
        Kind::Thread(RingMaker) => &[EVERY, RING_MAKER],
        Kind::Thread(DiskTransfer | DiskHelper) => &[EVERY, DISK],
        // A queue's thread of a server has these ioctls, too. The server has no descriptor of KVM.
        Kind::Thread(Adapter | AdapterQueue) => &[EVERY, MACHINE, LINES, DISK, QUEUE],
        Kind::Thread(Vcpu) => &[EVERY, VCPU, MACHINE, LINES],
        Kind::Thread(Terminal) => &[EVERY, LINES],
        Kind::Thread(ControlListener) => &[EVERY, LISTENER],
        Kind::Thread(ControlClient) => &[EVERY, CONTROL, DISK],
        Kind::Thread(Metrics) => &[EVERY, LISTENER, METRICS],
        Kind::Thread(NbdListener) => &[EVERY, LISTENER],
        Kind::Thread(NbdClient) => &[EVERY, CLIENT, DISK, QUEUE, QUEUE_SETUP],
        Kind::Thread(VhostUserSession) => &[EVERY, CLIENT, CLIENT_MEMORY, QUEUE_SETUP],
        Kind::Thread(VfioUserSession) => &[EVERY, LISTENER, CLIENT, CLIENT_MEMORY, DISK, QUEUE, QUEUE_SETUP],
        Kind::Thread(VhostUserQueue) => &[EVERY, DISK, QUEUE, STARTS_NOTIFIER, NOTIFIER],
        Kind::Thread(Notifier) => &[EVERY, NOTIFIER],
        Kind::Thread(Close) => &[EVERY, CLOSE],
        Kind::Thread(Deadline) => &[EVERY, DISK, QUEUE, QUEUE_SETUP],
        // Console, Signals, Closer, Messages; and a kind that this table does not know may do the least.
        Kind::Thread(_) => &[EVERY],
    }
}

/// The kinds of threads that a kind starts after the start of the program.
pub(crate) fn starts(kind: Kind) -> &'static [Kind] {
    use ThreadKind::*;
    const fn thread(kind: ThreadKind) -> Kind {
        Kind::Thread(kind)
    }
    const ENGINE: Kind = thread(DiskTransfer);
    const HELPER: Kind = thread(DiskHelper);
    match kind {
        // Each flushes its disks at the end, by a queue of its own.
        Kind::Main(Program::Run | Program::RunAttaching | Program::Nbd | Program::VfioUser) => {
            &[ENGINE, HELPER]
        }
        Kind::Main(Program::VhostUser) => &const { [ENGINE, HELPER, thread(VhostUserSession)] },
        Kind::Thread(Adapter | AdapterQueue) => &[HELPER],
        Kind::Thread(ControlListener) => &const { [thread(ControlClient)] },
        Kind::Thread(NbdListener) => &const { [thread(NbdClient)] },
        Kind::Thread(NbdClient) => &[ENGINE, HELPER],
        Kind::Thread(VhostUserSession) => &const { [thread(Notifier)] },
        Kind::Thread(VfioUserSession) => &const { [HELPER, thread(Notifier)] },
        Kind::Thread(VhostUserQueue) => &const { [HELPER, thread(Notifier)] },
        Kind::Thread(Closer) => &const { [thread(Close)] },
        // The flush of each disk is on a thread that has the same calls, and so the kind needs no filter within a filter.
        Kind::Thread(Deadline) => &[ENGINE, HELPER],
        Kind::Thread(_) => &[],
    }
}

/// All rules of a kind by call: its own, and those of the threads that it starts. A call with an empty list is allowed with any arguments.
pub(crate) fn allowed(kind: Kind) -> BTreeMap<c_long, Vec<&'static Rule>> {
    let mut all: BTreeMap<c_long, Vec<&'static Rule>> = BTreeMap::new();
    let mut add = |rules: &'static [Rule]| {
        for rule in rules {
            let known = all.entry(rule.number).or_default();
            if !known.iter().any(|other| other.tests == rule.tests) {
                known.push(rule);
            }
        }
    };
    own(kind).iter().for_each(|table| add(table));
    let started = starts(kind);
    if !started.is_empty() {
        add(STARTS_THREADS);
    }
    for rule in started.iter().flat_map(|kind| allowed(*kind).into_values().flatten()) {
        add(std::slice::from_ref(rule));
    }
    all
}

/// Calls of a kind that are refused with EACCES.
pub(crate) fn refused(kind: Kind) -> impl Iterator<Item = c_long> {
    let allowed = allowed(kind);
    REFUSED.iter().map(|(number, _)| *number).filter(move |number| !allowed.contains_key(number))
}

/// The name of a call that is in one of the tables.
pub(crate) fn name(number: c_long) -> Option<&'static str> {
    let named = ALL.iter().flat_map(|table| table.iter()).map(|rule| (rule.number, rule.name));
    let found = named.chain(REFUSED.iter().copied()).chain(NOBODY.iter().copied());
    let mut found = found.filter(|(other, _)| *other == number);
    found.next().map(|(_, name)| name.trim_start_matches("SYS_"))
}

/// Calls that nobody may make, and that messages name.
const NOBODY: &[(c_long, &str)] = &[
    (libc::SYS_execve, "SYS_execve"),
    (libc::SYS_execveat, "SYS_execveat"),
    (libc::SYS_fork, "SYS_fork"),
    (libc::SYS_vfork, "SYS_vfork"),
    (libc::SYS_clone3, "SYS_clone3"),
    (libc::SYS_ptrace, "SYS_ptrace"),
    (libc::SYS_process_vm_readv, "SYS_process_vm_readv"),
    (libc::SYS_process_vm_writev, "SYS_process_vm_writev"),
    (libc::SYS_socket, "SYS_socket"),
    (libc::SYS_connect, "SYS_connect"),
    (libc::SYS_bind, "SYS_bind"),
    (libc::SYS_listen, "SYS_listen"),
    (libc::SYS_accept, "SYS_accept"),
    (libc::SYS_kill, "SYS_kill"),
    (libc::SYS_mount, "SYS_mount"),
    (libc::SYS_unshare, "SYS_unshare"),
    (libc::SYS_setns, "SYS_setns"),
    (libc::SYS_bpf, "SYS_bpf"),
    (libc::SYS_keyctl, "SYS_keyctl"),
    (libc::SYS_userfaultfd, "SYS_userfaultfd"),
    (libc::SYS_unlink, "SYS_unlink"),
    (libc::SYS_rename, "SYS_rename"),
    (libc::SYS_renameat2, "SYS_renameat2"),
    (libc::SYS_mkdir, "SYS_mkdir"),
    (libc::SYS_chmod, "SYS_chmod"),
    (libc::SYS_chown, "SYS_chown"),
    (libc::SYS_setxattr, "SYS_setxattr"),
];

/// Every table, for names and tests.
pub(crate) const ALL: &[&[Rule]] = &[
    EVERY,
    STARTS_THREADS,
    DISK,
    QUEUE,
    RING_MAKER,
    QUEUE_SETUP,
    VCPU,
    MACHINE,
    LINES,
    LISTENER,
    CLIENT,
    CLIENT_MEMORY,
    STARTS_NOTIFIER,
    NOTIFIER,
    CLOSE,
    CONTROL,
    METRICS,
    END,
    ATTACHES,
    MACHINE_MAIN,
];

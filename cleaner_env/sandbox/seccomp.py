"""The seccomp profile of the containers: the system calls that Python programs use, and no others.

Docker's own default lets through sockets to the hypervisor (``AF_VSOCK``), on some engines ``io_uring``, and the System V
and POSIX message queues, which would outlive a session. Here sockets are those of Unix alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["seccomp_profile"]

_FILES: Final = """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 eventfd eventfd2 faccessat
    faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fcntl64 fdatasync
    fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate
    ftruncate64 futimesat getcwd getdents getdents64 getxattr inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch ioctl landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link
    linkat listxattr llistxattr lremovexattr lseek lsetxattr lstat lstat64 memfd_create mkdir mkdirat mknod mknodat
    newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile sendfile64 setxattr splice stat
    stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 umask unlink
    unlinkat utime utimensat utimensat_time64 utimes vmsplice write writev _llseek
"""
_MEMORY: Final = """
    brk get_mempolicy madvise mbind membarrier mincore mlock mlock2 mlockall mmap mmap2 mprotect mremap msync
    munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease set_mempolicy
"""
_PROCESSES: Final = """
    alarm arch_prctl capget capset clone execve execveat exit exit_group fork futex futex_time64 futex_waitv
    get_robust_list get_thread_area getcpu getegid geteuid getgid getgroups getitimer getpgid getpgrp getpid getppid
    getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid kill pause pidfd_open pidfd_send_signal
    prctl prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list
    set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid
    setresgid setresuid setreuid setrlimit setsid setuid sigaltstack sigreturn tgkill time timer_create timer_delete
    timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill
    ugetrlimit uname vfork wait4 waitid waitpid signalfd signalfd4 sysinfo
"""
_CLOCKS_AND_WAITING: Final = """
    clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old getrandom
    gettimeofday nanosleep poll ppoll ppoll_time64 pselect6 pselect6_time64 select _newselect
"""
_SOCKETS: Final = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64
    recvmsg send sendmmsg sendmsg sendto setsockopt shutdown
"""
_AF_UNIX: Final = 1
_NEW_NAMESPACES: Final = 0x7E020000
_ENOSYS: Final = 38
_EAFNOSUPPORT: Final = 97


def seccomp_profile() -> str:
    """Returns the profile as the JSON that an engine takes."""
    names = " ".join((_FILES, _MEMORY, _PROCESSES, _CLOCKS_AND_WAITING, _SOCKETS)).split()
    names.remove("clone")
    unix_only: dict[str, Any] = {"index": 0, "value": _AF_UNIX, "op": "SCMP_CMP_EQ"}
    others: dict[str, Any] = {"index": 0, "value": _AF_UNIX, "op": "SCMP_CMP_NE"}
    no_namespaces = {"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules: list[dict[str, Any]] = [
        {"names": names, "action": "SCMP_ACT_ALLOW"},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]},
        {"names": ["socket", "socketpair"], "action": "SCMP_ACT_ALLOW", "args": [unix_only]},
        {
            "names": ["socket", "socketpair"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": _EAFNOSUPPORT,
            "args": [others],
        },
        {
            "names": ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": _ENOSYS,  # What libraries take as a request to do without.
        },
    ]
    architectures = [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "archMap": architectures, "syscalls": rules})

//! CPUID leaves that report Hyper-V's interfaces to the guest (Hypervisor Top-Level Functional Specification 6.0, section 2.4).

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// The leaves that are reserved for hypervisors.
const HYPERVISOR_LEAVES: std::ops::Range<u32> = 0x4000_0000..0x4001_0000;
const SIGNATURE: u32 = 0x4000_0000;
const INTERFACE: u32 = 0x4000_0001;
const VERSION: u32 = 0x4000_0002;
const FEATURES: u32 = 0x4000_0003;
const RECOMMENDATIONS: u32 = 0x4000_0004;
const LIMITS: u32 = 0x4000_0005;

/// "Microsoft Hv" in EBX, ECX and EDX.
const VENDOR: [u32; 3] = [0x7263_694d, 0x666f_736f, 0x7648_2074];
/// "Hv#1".
const HV1: u32 = 0x3123_7648;

/// Advanced power management (AMD64 Architecture Programmer's Manual volume 3, appendix E.4.7), EDX: the time-stamp counter is invariant.
const POWER_MANAGEMENT: u32 = 0x8000_0007;
const INVARIANT_TSC: u32 = 1 << 8;

/// Features, EAX: the MSRs. Every read of the reference counter exits, and Linux prefers that counter to the time-stamp counter. So the
/// reference counter is reported only if the time-stamp counter is not invariant: Linux would not use the latter as its clock.
const TIME_REF_COUNT: u32 = 1 << 1;
const SYNIC: u32 = 1 << 2;
const VP_ASSIST: u32 = 1 << 4;
const HYPERCALL: u32 = 1 << 5;
const VP_INDEX: u32 = 1 << 6;
const FREQUENCY: u32 = 1 << 11;
const TSC_INVARIANT: u32 = 1 << 15;
/// Features, EBX: the hypercalls.
const POST_MESSAGES: u32 = 1 << 4;
const SIGNAL_EVENTS: u32 = 1 << 5;
/// Features, EDX.
const FREQUENCY_MSRS: u32 = 1 << 8;
/// Recommendations, EAX: relaxed timeouts, and no automatic end of interrupt.
const RELAXED_TIMING: u32 = 1 << 5;
const NO_AUTO_EOI: u32 = 1 << 9;
/// Recommendations, EBX: a spinning guest never notifies the hypervisor.
const NEVER_NOTIFY: u32 = u32::MAX;

/// Replace KVM's leaves in a virtual CPU's table by Hyper-V's. With the leaves of two hypervisors, a guest would use the higher ones.
/// `tsc_is_clock`: the host's kernel uses the time-stamp counter as its clock, even if CPUID does not report the counter as invariant.
pub(super) fn replace(
    cpuid: &mut CpuId,
    cpus: u8,
    tsc_is_clock: bool,
) -> Result<(), vmm_sys_util::fam::Error> {
    let says_so =
        |entry: &kvm_cpuid_entry2| entry.function == POWER_MANAGEMENT && entry.edx & INVARIANT_TSC != 0;
    let clock =
        if tsc_is_clock || cpuid.as_slice().iter().any(says_so) { TSC_INVARIANT } else { TIME_REF_COUNT };
    cpuid.retain(|entry| !HYPERVISOR_LEAVES.contains(&entry.function));
    leaves(cpus.into(), clock).into_iter().try_for_each(|leaf| cpuid.push(leaf))
}

fn leaves(cpus: u32, clock: u32) -> [kvm_cpuid_entry2; 6] {
    let leaf = |function, [eax, ebx, ecx, edx]: [u32; 4]| kvm_cpuid_entry2 {
        function,
        eax,
        ebx,
        ecx,
        edx,
        ..Default::default()
    };
    let [ebx, ecx, edx] = VENDOR;
    let msrs = SYNIC | VP_ASSIST | HYPERCALL | VP_INDEX | FREQUENCY | clock;
    [
        leaf(SIGNATURE, [LIMITS, ebx, ecx, edx]),
        leaf(INTERFACE, [HV1, 0, 0, 0]),
        leaf(VERSION, [0; 4]),
        leaf(FEATURES, [msrs, POST_MESSAGES | SIGNAL_EVENTS, 0, FREQUENCY_MSRS]),
        leaf(RECOMMENDATIONS, [RELAXED_TIMING | NO_AUTO_EOI, NEVER_NOTIFY, 0, 0]),
        leaf(LIMITS, [cpus, cpus, 0, 0]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaves_take_the_place_of_kvms() {
        let offered = [1, 0x4000_0000, 0x4000_0001, 0x4000_0082, 0x8000_0000];
        let offered = offered.map(|function| kvm_cpuid_entry2 { function, eax: 7, ..Default::default() });
        let mut cpuid = CpuId::from_entries(&offered).unwrap();
        replace(&mut cpuid, 3, true).unwrap();
        let found: Vec<_> =
            cpuid.as_slice().iter().map(|e| (e.function, [e.eax, e.ebx, e.ecx, e.edx])).collect();
        let signature = *b"Microsoft Hv";
        let word = |at: usize| u32::from_le_bytes(signature[at..at + 4].try_into().unwrap());
        let expected = [
            (1, [7, 0, 0, 0]),
            (0x8000_0000, [7, 0, 0, 0]),
            (0x4000_0000, [0x4000_0005, word(0), word(4), word(8)]),
            (0x4000_0001, [u32::from_le_bytes(*b"Hv#1"), 0, 0, 0]),
            (0x4000_0002, [0; 4]),
            (0x4000_0003, [0x8874, 0x30, 0, 0x100]),
            (0x4000_0004, [0x220, u32::MAX, 0, 0]),
            (0x4000_0005, [3, 3, 0, 0]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_time_stamp_counter_is_invariant_only_where_the_hosts_is() {
        let features = |power: Option<u32>, tsc_is_clock| {
            let power =
                power.map(|edx| kvm_cpuid_entry2 { function: 0x8000_0007, edx, ..Default::default() });
            let mut cpuid = CpuId::from_entries(power.as_slice()).unwrap();
            replace(&mut cpuid, 1, tsc_is_clock).unwrap();
            cpuid.as_slice().iter().find(|entry| entry.function == 0x4000_0003).unwrap().eax
        };
        let (invariant, counter) = (0x8874, 0x0876);
        assert_eq!(features(None, false), counter);
        assert_eq!(features(Some(!0x100), false), counter);
        assert_eq!(features(Some(0x100), false), invariant);
        assert_eq!(features(None, true), invariant);
    }
}

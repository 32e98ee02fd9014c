//! CPUID of virtual CPUs (Intel SDM volume 2, CPUID; AMD64 Architecture Programmer's Manual volume 3, appendix E): KVM's supported values,
//! with the machine's own topology, which is one package of single-threaded cores. A guest whose kernel mode is interpreted sees the host's
//! CPUID instead.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

const TOPOLOGY: u32 = 0xb;
const TOPOLOGY_V2: u32 = 0x1f;
const AMD_CACHES: u32 = 0x8000_001d;
/// Leaf 1, ECX: the local APIC's timer takes a deadline; this is a virtual machine.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 1, EDX: EBX has the number of CPUs of the package.
const HTT: u32 = 1 << 28;

/// The table of CPU `id` of `cpus`.
pub(crate) fn of_cpu(offered: &CpuId, id: u8, cpus: u8) -> CpuId {
    let (id, cpus) = (u32::from(id), u32::from(cpus));
    let id_bits = cpus.next_power_of_two().trailing_zeros();
    let mut cpuid = offered.clone();
    cpuid.retain(|entry| ![TOPOLOGY, TOPOLOGY_V2].contains(&entry.function));
    let mut max_leaf = 0;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            0 => max_leaf = entry.eax,
            1 => {
                entry.ebx = entry.ebx & 0xffff | cpus << 16 | id << 24;
                entry.ecx |= HYPERVISOR | TSC_DEADLINE;
                entry.edx = if cpus > 1 { entry.edx | HTT } else { entry.edx & !HTT };
            }
            // Caches: cores of the package (Intel), and CPUs that share the cache: all for the third level.
            4 | AMD_CACHES if entry.eax & 0x1f != 0 => {
                let sharing = if entry.eax >> 5 & 7 >= 3 { cpus - 1 } else { 0 };
                let cores = if entry.function == 4 { (cpus - 1).min(63) } else { 0 };
                entry.eax = entry.eax & 0x3fff | sharing << 14 | cores << 26;
            }
            0x8000_0008 => entry.ecx = id_bits << 12 | (cpus - 1),
            0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (id, id & 0xff, 0),
            _ => {}
        }
    }
    if max_leaf >= TOPOLOGY {
        let level = |index, shift, cpus, kind: u32| kvm_cpuid_entry2 {
            function: TOPOLOGY,
            index,
            flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
            eax: shift,
            ebx: cpus,
            ecx: kind << 8 | index,
            edx: id,
            ..Default::default()
        };
        // Threads of a core, cores of the package.
        for entry in [level(0, 0, 1, 1), level(1, id_bits, cpus, 2)] {
            // Fails only above KVM's limit, which is far above the number of its entries.
            let _ = cpuid.push(entry);
        }
    }
    cpuid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(cpuid: &CpuId, function: u32, index: u32) -> [u32; 4] {
        let mut found = cpuid.as_slice().iter().filter(|e| (e.function, e.index) == (function, index));
        let entry = found.next().unwrap();
        assert!(found.next().is_none());
        [entry.eax, entry.ebx, entry.ecx, entry.edx]
    }

    #[test]
    fn each_cpu_has_its_number_in_one_package() {
        let offer = |function, index, eax| kvm_cpuid_entry2 {
            function,
            index,
            eax,
            ebx: 0x1234_0800,
            ..Default::default()
        };
        // A host with a third-level cache shared by 64 CPUs, and a topology of two levels in both versions of the leaf.
        let offered = [
            offer(0, 0, 0x1f),
            offer(1, 0, 0xa2_0f12),
            offer(4, 1, 0xfc00_4122),
            offer(4, 3, 0xfc0f_c163),
            offer(4, 4, 0),
            offer(0xb, 0, 1),
            offer(0xb, 1, 7),
            offer(0x1f, 0, 1),
            offer(0x8000_0008, 0, 0x3030),
            offer(0x8000_001d, 0, 0x4121),
            offer(0x8000_001d, 3, 0x3_c163),
            offer(0x8000_001e, 0, 9),
        ];
        let cpuid = of_cpu(&CpuId::from_entries(&offered).unwrap(), 4, 6);
        let [_, ebx, ecx, edx] = entry(&cpuid, 1, 0);
        assert_eq!((ebx, ecx, edx), (0x0406_0800, HYPERVISOR | TSC_DEADLINE, HTT));
        assert_eq!(entry(&cpuid, 4, 1)[0], 0x1400_0122, "an own first-level cache, six cores");
        assert_eq!(entry(&cpuid, 4, 3)[0], 0x1401_4163, "a shared third-level cache");
        assert_eq!(entry(&cpuid, 4, 4)[0], 0, "no more caches");
        assert_eq!(entry(&cpuid, 0xb, 0), [0, 1, 0x100, 4]);
        assert_eq!(entry(&cpuid, 0xb, 1), [3, 6, 0x201, 4]);
        assert_eq!(entry(&cpuid, 0x8000_0008, 0)[2], 0x3005);
        assert_eq!(entry(&cpuid, 0x8000_001d, 0)[0], 0x0121, "AMD's: an own first-level cache");
        assert_eq!(entry(&cpuid, 0x8000_001d, 3)[0], 0x1_4163, "a shared third-level cache");
        assert_eq!(entry(&cpuid, 0x8000_001e, 0)[..3], [4, 4, 0]);
        assert!(cpuid.as_slice().iter().all(|entry| entry.function != 0x1f));

        let alone = of_cpu(&CpuId::from_entries(&offered[1..2]).unwrap(), 0, 1);
        assert_eq!(entry(&alone, 1, 0), [0xa2_0f12, 0x0001_0800, HYPERVISOR | TSC_DEADLINE, 0]);
        assert_eq!(alone.as_slice().len(), 1, "an old CPU without topology leaves");
    }
}

//! Everything at CPL 0: entry, descriptor tables, interrupt and exception handlers, and the trap. A KVM without
//! VT-x or AMD-V interprets these instructions, so they are few.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{CONTROL, IMAGE, LOCAL_APIC, control};

/// Device interrupts, by message and by line.
pub const DEVICE_VECTOR: u32 = 0x30;

/// Device interrupts taken so far, wrapping.
#[unsafe(no_mangle)]
pub static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

global_asm!(
    r#"
    .section .entry, "awx"
    .global _start
image:
_start:
    lea rsp, [rip + kernel_stack_top]
    lgdt [rip + gdt_pointer]
    lidt [rip + idt_pointer]
    mov eax, 0x28
    ltr ax
    // Spurious vector 0x3f, APIC enabled.
    mov dword ptr [{apic} + 0xf0], 0x13f
    // Local interrupt 0 masked: the 8259s are connected to it, and would deliver ISA lines with vectors of exceptions.
    mov dword ptr [{apic} + 0x350], 0x10000
    // Timer: divide by 1, periodic, vector 0x31, about once a second. It bounds every sleep.
    mov dword ptr [{apic} + 0x3e0], 0xb
    mov dword ptr [{apic} + 0x320], 0x20031
    mov dword ptr [{apic} + 0x380], 1000000000
    // To CPL 3.
    push 0x23
    lea rax, [rip + user_stack_top - 8]
    push rax
    push 0x202
    push 0x1b
    lea rax, [rip + user_main]
    push rax
    iretq

device_interrupt:
    inc dword ptr [INTERRUPTS]
timer_interrupt:
    // End of interrupt.
    mov dword ptr [{apic} + 0xb0], 0
spurious_interrupt:
    iretq

// Breakpoint, the one trap that every KVM takes from CPL 3 (shadow-paging ones refuse `int n`). Sleep if INTERRUPTS is
// still edi. Interrupts are off until after the comparison, and `sti` lets none in before `hlt`.
trap:
    cmp dword ptr [INTERRUPTS], edi
    jne 1f
    sti
    hlt
    iretq
    // Else do what rcx points to, if anything: one of those below, which need CPL 0 (an I/O permission map does not help on such a KVM).
1:  test rcx, rcx
    jz 2f
    jmp rcx
2:  iretq

// Read configuration space at address eax by mechanism 1, to eax.
config_mechanism1:
    mov edx, 0xcf8
    out dx, eax
    mov edx, 0xcfc
    in eax, dx
    iretq
port_in_byte:
    in al, dx
    iretq
port_in_word:
    in ax, dx
    iretq
port_in_dword:
    in eax, dx
    iretq
port_out_byte:
    out dx, al
    iretq
port_out_word:
    out dx, ax
    iretq
port_out_dword:
    out dx, eax
    iretq
// Register esi; edx and eax are its value.
msr_write:
    mov ecx, esi
    wrmsr
    iretq
// Control word r9; the code is at r10.
hypercall:
    mov rcx, r9
    call r10
    iretq

// Vector and error code are on the stack: tell the host.
report:
    mov rax, [rsp + 8]
    mov [{control} + {fault_error}], rax
    mov rax, [rsp + 16]
    mov [{control} + {fault_rip}], rax
    mov rax, cr2
    mov [{control} + {fault_cr2}], rax
    mov rax, [rsp]
    mov [{control} + {fault_vector}], rax
1:  hlt
    jmp 1b

    .balign 16
exceptions:
    .irp vector, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    .balign 16
    // Vectors 8, 10 to 14, 17, 21, 29 and 30 push an error code of their own.
    .if ((0x60227d00 >> \vector) & 1) == 0
    push 0
    .endif
    push \vector
    jmp report
    .endr

    .balign 16
gdt:
    .quad 0
    .quad 0x00af9b000000ffff    // 0x08 code, CPL 0
    .quad 0x00cf93000000ffff    // 0x10 data, CPL 0
    .quad 0x00affb000000ffff    // 0x18 code, CPL 3
    .quad 0x00cff3000000ffff    // 0x20 data, CPL 3
    .short 0x67, tss - image, 0x8900 + {image_high}, 0, 0, 0, 0, 0  // 0x28 task state segment
gdt_end:
    .balign 16
tss:
    .long 0
    .quad kernel_stack_top
    .fill 0x68 - 12, 1, 0

    .macro gate handler, flags
    .short \handler - image, 0x08, \flags, {image_high}
    .quad 0
    .endm
    .balign 16
idt:
    .irp vector, 0,1,2
    gate (exceptions + 16 * \vector), 0x8e00
    .endr
    gate trap, 0xee00                   // 3
    .irp vector, 4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    gate (exceptions + 16 * \vector), 0x8e00
    .endr
    .fill 0x10 * 2, 8, 0
    gate device_interrupt, 0x8e00       // 0x30
    gate timer_interrupt, 0x8e00        // 0x31
    .fill 0x0d * 2, 8, 0
    gate spurious_interrupt, 0x8e00     // 0x3f
idt_end:
gdt_pointer:
    .short gdt_end - gdt - 1
    .quad gdt
idt_pointer:
    .short idt_end - idt - 1
    .quad idt

    .section .bss
    .balign 16
    .skip 4096
kernel_stack_top:
    .skip 262144
user_stack_top:
    .text
"#,
    apic = const LOCAL_APIC,
    control = const CONTROL,
    fault_error = const control::FAULT_ERROR,
    fault_rip = const control::FAULT_RIP,
    fault_cr2 = const control::FAULT_CR2,
    fault_vector = const control::FAULT_VECTOR,
    image_high = const IMAGE >> 16,
);

unsafe extern "C" {
    static config_mechanism1: u8;
    static port_in_byte: u8;
    static port_in_word: u8;
    static port_in_dword: u8;
    static port_out_byte: u8;
    static port_out_word: u8;
    static port_out_dword: u8;
    static msr_write: u8;
    static hypercall: u8;
}

/// Sleep until an interrupt, unless their number is no longer `seen`.
pub fn wait(seen: u32) {
    // SAFETY: the trap's handler changes nothing but flags.
    unsafe { asm!("int3", in("edi") seen, in("rcx") 0) };
}

/// Have the trap's handler do `what` at CPL 0; what is in eax afterwards.
fn at_cpl_0(what: *const u8, eax: u32, edx: u32) -> u32 {
    // Not the value of INTERRUPTS now or at the trap, so the handler does not sleep.
    let passed = INTERRUPTS.load(Ordering::Relaxed).wrapping_sub(1);
    let value;
    // SAFETY: `what` is one of the handler's routines, which change eax, edx and flags alone.
    unsafe { asm!("int3", in("edi") passed, in("rcx") what, inout("eax") eax => value, inout("edx") edx => _) };
    value
}

/// Read 1, 2 or 4 bytes from a port.
pub fn port_read(port: u16, len: usize) -> u32 {
    let (routine, mask) = match len {
        1 => (&raw const port_in_byte, 0xff),
        2 => (&raw const port_in_word, 0xffff),
        _ => (&raw const port_in_dword, u32::MAX),
    };
    at_cpl_0(routine, 0, port.into()) & mask
}

/// Write 1, 2 or 4 bytes to a port.
pub fn port_write(port: u16, len: usize, value: u32) {
    let routine = match len {
        1 => &raw const port_out_byte,
        2 => &raw const port_out_word,
        _ => &raw const port_out_dword,
    };
    at_cpl_0(routine, value, port.into());
}

/// Write a model-specific register.
pub fn write_msr(msr: u32, value: u64) {
    let passed = INTERRUPTS.load(Ordering::Relaxed).wrapping_sub(1);
    // SAFETY: the routine changes ecx and the register, which is one of the hypervisor's for this guest.
    unsafe {
        asm!(
            "int3",
            in("edi") passed,
            inout("rcx") &raw const msr_write => _,
            in("esi") msr,
            in("eax") value as u32,
            in("edx") (value >> 32) as u32,
        );
    }
}

/// Call the hypervisor by its code at `page`.
pub fn call_hypervisor(page: u64, control: u64, input: u64, output: u64) -> u64 {
    let passed = INTERRUPTS.load(Ordering::Relaxed).wrapping_sub(1);
    let status;
    // SAFETY: the hypervisor's code changes the registers that its specification names, and memory that the input names, which is for
    // it alone meanwhile.
    unsafe {
        asm!(
            "int3",
            in("edi") passed,
            inout("rcx") &raw const hypercall => _,
            in("r10") page,
            inout("r9") control => _,
            inout("rdx") input => _,
            inout("r8") output => _,
            out("rax") status,
            out("r11") _,
        );
    }
    status
}

/// Read a dword of configuration space by mechanism 1.
pub fn config_read_mechanism1(address: u32) -> u32 {
    at_cpl_0(&raw const config_mechanism1, address, 0)
}

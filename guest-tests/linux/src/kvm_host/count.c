/*
 * A plugin for QEMU's TCG: counts instructions on a machine whose guest (L1) runs guests (L2) by AMD SVM, and repairs two faults
 * of QEMU that break L2 and L1.
 *
 * Counting. Each translation block adds its instructions to one of four counters: of L1 or L2, of user space or kernel. The kernel is what
 * has addresses in the upper half. L2 begins with VMRUN and ends with the block behind that VMRUN, where L1 continues. L1 and L2 have
 * kernels and modules at the same addresses, so the code there has to be L1's, too: the first that was ever translated there. A mark writes all counters: the instruction
 * `nopl 0x??4b524d(%rax,%rax,1)`, whose highest byte is the mark's number; it does nothing on a CPU, and leaves no guest.
 *
 * Repair of the injection of interrupts. `helper_vmrun` (target/i386/tcg/system/svm_helper.c) delivers an injected external interrupt itself, but has stored its vector in
 * `cs->exception_index` before. The vector stays there until L2 exits. If the main loop is asked to stop before that (`exit_request`, or
 * the end of -icount's budget) and no interrupt is pending, it takes the vector for an exception and delivers it a second time, at an
 * arbitrary instruction and with interrupts disabled too: L2 deadlocks, panics or triple-faults; with -icount L1 hangs after seconds to
 * minutes. Without -icount other threads ask: for a change of the memory map (L1 writes a PCI command register), for RCU, or because one CPU
 * stops all others. The store is replaced in memory by no-operations: the only 32-bit store of a register to a negative offset
 * (CPUState lies before CPUX86State) in the 64 bytes before the only call of do_interrupt_x86_hardirq. Without that store the vector goes
 * nowhere else.
 *
 * Repair of a race. Whenever a CPU loads FPU state (`FXRSTOR`, `XRSTOR`, `FRSTOR`, `FLDENV`; each switch of tasks), `cpu_clear_ignne`
 * (target/i386/tcg/system/fpu_helper.c) clears a bit of the first CPU's `hflags2`, and neither takes a lock nor is atomic. If the first CPU's
 * thread changes the same word meanwhile, that change is lost: nested paging stays on after L2's exit, so that L1's state is taken for L2's;
 * or the global interrupt flag stays as it was. L1 panics or hangs, L2 triple-faults. The clearing is replaced in memory by an atomic one:
 * the only `and` of a word in memory with ffffff7fh there, by a locked one of the same word's lowest byte.
 *
 * A QEMU that stores no vector there, or whose `and` is a locked one already, is taken for repaired. All else is an error.
 *
 * QEMU 7.2, where L1 has one CPU, has both faults at the same places. The race needs two CPUs; its repair does no harm. `helper_vmrun` is not
 * exported there, but lies between two functions of the same file that are, and is the only one of that file that calls
 * do_interrupt_x86_hardirq.
 *
 * Without `out=FILE` it only repairs. With `profile=FILE` it also writes, at each mark, how many instructions of each block of L1's kernel were
 * executed so far: a line of `ADDRESS COUNT` for each block, and a line `mark`.
 *
 * Interface: QEMU's include/{plugins,qemu}/qemu-plugin.h, version PLUGIN_API: 1 (QEMU 7.2) or 7 (QEMU 11.1). Declared here because Debian
 * does not package it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <inttypes.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int qemu_plugin_version = PLUGIN_API;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*on_execution)(unsigned cpu, void *data);
enum { NO_REGISTERS = 0 };

#if PLUGIN_API == 1
typedef void (*on_translation)(uint64_t id, struct qemu_plugin_tb *tb);
typedef void (*on_event)(uint64_t id, void *data);
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, on_translation call);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
#elif PLUGIN_API == 7
typedef void (*on_translation)(struct qemu_plugin_tb *tb, void *data);
typedef void (*on_event)(void *data);
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, on_translation call, void *data);
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t length);
#else
#error "PLUGIN_API is 1 or 7"
#endif
extern void qemu_plugin_register_atexit_cb(uint64_t id, on_event call, void *data);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, on_execution call, int flags, void *data);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, on_execution call, int flags, void *data);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);

/* ---- Counting ---- */

#define CURRENT_CPU "current_cpu"

enum { CPUS = 8 };
enum { HOST_USER, HOST_KERNEL, GUEST_USER, GUEST_KERNEL, COUNTERS };

static struct cpu {
	/* QEMU's. None: not used yet. */
	const void *identity;
	uint64_t instructions[COUNTERS];
	uint64_t vmruns;
	bool in_guest;
} cpus[CPUS];

/* L1's code behind VMRUN, as far as it was seen. KVM has one VMRUN for all guests but encrypted ones. */
static struct {
	uint64_t address;
	uint8_t bytes[32];
	size_t length;
} after_vmrun;

/* What is known of a block when it is translated. */
struct block {
	uint64_t address;
	uint64_t instructions;
	unsigned kernel;
	/* L1's, behind its VMRUN. */
	bool continues_host;
	/* Executions in L1's kernel, and the block that was translated before this one; for a profile. */
	uint64_t runs;
	struct block *before;
};

static struct block *last_block;
static FILE *output, *profile;

static void write_profile(void)
{
	for (const struct block *block = last_block; block; block = block->before)
		if (block->runs)
			fprintf(profile, "%" PRIx64 " %" PRIu64 "\n", block->address, block->runs * block->instructions);
	fputs("mark\n", profile);
	fflush(profile);
}

static void write_counters(const char *name, unsigned mark)
{
	uint64_t sum[COUNTERS] = { 0 }, vmruns = 0;
	for (unsigned cpu = 0; cpu < CPUS; cpu++) {
		for (unsigned i = 0; i < COUNTERS; i++)
			sum[i] += cpus[cpu].instructions[i];
		vmruns += cpus[cpu].vmruns;
	}
	fprintf(output,
		"{\"%s\": %u, \"host_user\": %" PRIu64 ", \"host_kernel\": %" PRIu64 ", \"guest_user\": %" PRIu64
		", \"guest_kernel\": %" PRIu64 ", \"vmruns\": %" PRIu64 "}\n",
		name, mark, sum[HOST_USER], sum[HOST_KERNEL], sum[GUEST_USER], sum[GUEST_KERNEL], vmruns);
	fflush(output);
}

/*
 * The CPU that executes. With -icount the index that callbacks are given is that of the CPU for which the block was
 * translated, and all CPUs use its translation.
 */
static struct cpu *this_cpu(void)
{
	static __thread const void **current;
	if (!current)
		current = dlsym(RTLD_DEFAULT, CURRENT_CPU);
	unsigned index = 0;
	while (index < CPUS - 1 && cpus[index].identity && cpus[index].identity != *current)
		index++;
	cpus[index].identity = *current;
	return &cpus[index];
}

static void block_runs(unsigned index, void *data)
{
	struct block *block = data;
	struct cpu *cpu = this_cpu();
	(void)index;
	if (block->continues_host)
		cpu->in_guest = false;
	cpu->instructions[(cpu->in_guest ? GUEST_USER : HOST_USER) + block->kernel] += block->instructions;
	if (profile && block->kernel && !cpu->in_guest)
		block->runs++;
}

static void vmrun_runs(unsigned index, void *data)
{
	struct cpu *cpu = this_cpu();
	(void)index;
	cpu->vmruns++;
	cpu->in_guest = true;
	if (after_vmrun.address && after_vmrun.address != (uint64_t)(uintptr_t)data)
		fputs("count: VMRUN at two places, counts of L1 and L2 are wrong\n", stderr);
	after_vmrun.address = (uint64_t)(uintptr_t)data;
}

static void mark_runs(unsigned index, void *data)
{
	(void)index;
	write_counters("mark", (unsigned)(uintptr_t)data);
	if (profile)
		write_profile();
}

/* Whether this is L1's code there. Blocks differ in length. */
static bool is_after_vmrun(const uint8_t *code, size_t length)
{
	size_t known = length < after_vmrun.length ? length : after_vmrun.length;
	if (memcmp(code, after_vmrun.bytes, known))
		return false;
	if (length > known) {
		memcpy(after_vmrun.bytes, code, length);
		after_vmrun.length = length;
	}
	return true;
}

/* The first bytes of an instruction, at the most `length`; how many. */
static size_t first_bytes(const struct qemu_plugin_insn *insn, uint8_t *to, size_t length)
{
#if PLUGIN_API == 1
	size_t all = qemu_plugin_insn_size(insn);
	length = all < length ? all : length;
	memcpy(to, qemu_plugin_insn_data(insn), length);
	return length;
#else
	return qemu_plugin_insn_data(insn, to, length);
#endif
}

static void translate_block(struct qemu_plugin_tb *tb)
{
	static const uint8_t VMRUN[] = { 0x0f, 0x01, 0xd8 };
	static const uint8_t MARK[] = { 0x0f, 0x1f, 0x84, 0x00, 'M', 'R', 'K' };
	/* Never freed: blocks that QEMU throws away may still be running. */
	struct block *block = malloc(sizeof *block);
	if (!block)
		abort();
	block->address = qemu_plugin_tb_vaddr(tb);
	block->instructions = qemu_plugin_tb_n_insns(tb);
	block->kernel = block->address >> 63;
	block->runs = 0;
	block->before = last_block;
	last_block = block;
	uint8_t code[sizeof after_vmrun.bytes];
	size_t code_length = 0;
	qemu_plugin_register_vcpu_tb_exec_cb(tb, block_runs, NO_REGISTERS, block);
	for (size_t i = 0; i < block->instructions; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint8_t bytes[8];
		size_t length = first_bytes(insn, bytes, sizeof bytes);
		uint64_t address = qemu_plugin_insn_vaddr(insn);
		for (size_t k = 0; k < length && k < sizeof bytes && code_length < sizeof code; k++)
			code[code_length++] = bytes[k];
		if (length == sizeof VMRUN && !memcmp(bytes, VMRUN, sizeof VMRUN))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, vmrun_runs, NO_REGISTERS,
							       (void *)(uintptr_t)(address + sizeof VMRUN));
		if (length == 8 && !memcmp(bytes, MARK, sizeof MARK))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, mark_runs, NO_REGISTERS, (void *)(uintptr_t)bytes[7]);
	}
	block->continues_host = block->address == after_vmrun.address && is_after_vmrun(code, code_length);
}

#if PLUGIN_API == 1
static void block_is_translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	translate_block(tb);
}

static void machine_ends(uint64_t id, void *data)
{
	(void)id;
	(void)data;
	write_counters("end", 0);
}

static void count_from_now(uint64_t id)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, block_is_translated);
	qemu_plugin_register_atexit_cb(id, machine_ends, NULL);
}
#else
static void block_is_translated(struct qemu_plugin_tb *tb, void *data)
{
	(void)data;
	translate_block(tb);
}

static void machine_ends(void *data)
{
	(void)data;
	write_counters("end", 0);
}

static void count_from_now(uint64_t id)
{
	qemu_plugin_register_vcpu_tb_trans_cb(id, block_is_translated, NULL);
	qemu_plugin_register_atexit_cb(id, machine_ends, NULL);
}
#endif

/* ---- Repair ---- */

/* A function of QEMU. */
struct function {
	uint8_t *start, *end;
};

static bool find(const char *name, struct function *found)
{
	Dl_info info;
	const ElfW(Sym) *symbol = NULL;
	found->start = dlsym(RTLD_DEFAULT, name);
	if (!found->start || !dladdr1(found->start, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol || !symbol->st_size)
		return false;
	found->end = found->start + symbol->st_size;
	return true;
}

/* What lies between two functions, with the first. */
static bool find_between(const char *first, const char *behind, struct function *found)
{
	found->start = dlsym(RTLD_DEFAULT, first);
	found->end = dlsym(RTLD_DEFAULT, behind);
	return found->start && found->start < found->end;
}

/* Other instructions of the same length. */
static const char *replace(uint8_t *at, const uint8_t *code, size_t length)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);
	uint8_t *start = (uint8_t *)((uintptr_t)at & ~(page - 1));
	size_t bytes = (size_t)(at + length - start);
	if (mprotect(start, bytes, PROT_READ | PROT_WRITE | PROT_EXEC))
		return "the code of QEMU cannot be made writable";
	memcpy(at, code, length);
	if (mprotect(start, bytes, PROT_READ | PROT_EXEC))
		return "the code of QEMU cannot be made read-only again";
	return NULL;
}

static const char *repair_injection(void)
{
	enum { BEFORE = 64, CALL = 5, STORE = 6 };
	static const uint8_t NOTHING[STORE] = { 0x90, 0x90, 0x90, 0x90, 0x90, 0x90 };
	struct function vmrun, deliver;
	const char *start = "helper_vmrun";
	bool found = find(start, &vmrun);
	if (!found) {
		start = "cpu_svm_check_intercept_param";
		found = find_between(start, "do_vmexit", &vmrun);
	}
	if (!found || !find("do_interrupt_x86_hardirq", &deliver))
		return "QEMU exports neither helper_vmrun nor what is around it, or not do_interrupt_x86_hardirq";

	uint8_t *call = NULL;
	for (uint8_t *at = vmrun.start + BEFORE; at + CALL <= vmrun.end; at++) {
		int32_t relative;
		memcpy(&relative, at + 1, sizeof relative);
		if (*at != 0xe8 || at + CALL + relative != deliver.start)
			continue;
		if (call)
			return "helper_vmrun calls do_interrupt_x86_hardirq twice";
		call = at;
	}
	if (!call)
		return "helper_vmrun does not call do_interrupt_x86_hardirq";

	/* 89 /r with a base register and a displacement of 32 bits that is negative. */
	uint8_t *store = NULL;
	for (uint8_t *at = call - BEFORE; at + STORE <= call; at++) {
		uint8_t base = at[1] & 7;
		int32_t displacement;
		memcpy(&displacement, at + 2, sizeof displacement);
		if (at[0] != 0x89 || at[1] >> 6 != 2 || base == 4 || displacement >= 0 || displacement < -0x10000)
			continue;
		if (store)
			return "two stores look like that of the vector";
		/* A prefix, or the last byte of the instruction before. */
		if ((at[-1] & 0xf0) == 0x40)
			return "the store of the vector may have a prefix";
		store = at;
	}
	if (!store) {
		fputs("count: helper_vmrun stores no vector: QEMU is repaired\n", stderr);
		return NULL;
	}
	const char *error = replace(store, NOTHING, sizeof NOTHING);
	if (!error)
		fprintf(stderr, "count: the store of the vector at %s+%#tx is replaced\n", start, store - vmrun.start);
	return error;
}

static const char *repair_race(void)
{
	enum { AND = 10, LOCK = 0xf0 };
	struct function clear;
	if (!find("cpu_clear_ignne", &clear))
		return "QEMU does not export cpu_clear_ignne";

	/* 81 /4 with a base register, a displacement of 32 bits and that constant. */
	static const uint8_t BUT_IGNNE[] = { 0x7f, 0xff, 0xff, 0xff };
	uint8_t *and = NULL;
	for (uint8_t *at = clear.start + 1; at + AND <= clear.end; at++) {
		uint8_t base = at[1] & 7;
		if (at[0] != 0x81 || (at[1] & 0xf8) != 0xa0 || base == 4 || memcmp(at + 6, BUT_IGNNE, sizeof BUT_IGNNE))
			continue;
		if (and)
			return "two instructions look like the clearing of IGNNE";
		/* REX, or the last byte of the instruction before. */
		if ((at[-1] & 0xf0) == 0x40)
			return "the clearing of IGNNE may have a prefix";
		and = at;
	}
	if (!and)
		return "cpu_clear_ignne does not clear IGNNE by an `and` in memory";
	if (and[-1] == LOCK) {
		fputs("count: cpu_clear_ignne is atomic: QEMU is repaired\n", stderr);
		return NULL;
	}
	/* lock andb $0x7f, displacement(base); and a no-operation of two bytes. */
	uint8_t code[AND] = { LOCK, 0x80, and[1], and[2], and[3], and[4], and[5], 0x7f, 0x66, 0x90 };
	const char *error = replace(and, code, sizeof code);
	if (!error)
		fprintf(stderr, "count: the `and` at cpu_clear_ignne+%#tx is atomic now\n", and - clear.start);
	return error;
}

EXPORT int qemu_plugin_install(uint64_t id, const void *machine, int argc, char **argv)
{
	(void)machine;
	bool understood = true;
	for (int i = 0; i < argc; i++) {
		FILE **file = !strncmp(argv[i], "out=", 4) ? &output : !strncmp(argv[i], "profile=", 8) ? &profile : NULL;
		if (file)
			*file = fopen(strchr(argv[i], '=') + 1, "w");
		understood = understood && file && *file;
	}
	if (!understood || (profile && !output)) {
		fputs("count: give it out=FILE, and profile=FILE, where it can write, or nothing\n", stderr);
		return 1;
	}
	const char *error = dlsym(RTLD_DEFAULT, CURRENT_CPU) ? NULL : "QEMU does not export " CURRENT_CPU;
	if (!error)
		error = repair_injection();
	if (!error)
		error = repair_race();
	if (error) {
		fprintf(stderr, "count: %s\n", error);
		return 1;
	}
	if (output)
		count_from_now(id);
	return 0;
}

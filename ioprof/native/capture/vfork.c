/* The thread-local word of the reentrancy guard, and the hook of vfork, which needs it.
 *
 * Parent and child of a vfork share one memory and one stack until the child calls exec or _exit.
 * What the child does to its descriptors in between must not be taken for the parent's doing. A C
 * function that returned twice would overwrite its own stack frame, so this one is written in
 * assembly and has no frame: it adds GUARD_VFORK to the guard when it returns in the child, and
 * restores the guard when it returns in the parent. */
#include "guard.h"

__thread volatile uint32_t ioprof_guard __attribute__((tls_model("initial-exec")));
volatile uint32_t ioprof_num_forks;

#if defined(__SANITIZE_THREAD__)
/* The thread sanitizer implements vfork as fork. */
#elif defined(__x86_64__) && defined(__linux__) && defined(__LP64__)
/* The return address is kept in a register, because the child returns first and its caller may
 * overwrite the stack. A shadow stack would not allow that, so the library is built without
 * -fcf-protection and so without the mark that asks for one. */
__asm__(".pushsection .text\n"
        ".globl vfork\n"
        ".type vfork, @function\n"
        "vfork:\n"
        "    .cfi_startproc\n"
        "    lock incl ioprof_num_forks(%rip)\n"
        "    movq ioprof_guard@GOTTPOFF(%rip), %r8\n"
        "    movl %fs:(%r8), %esi\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    .cfi_register %rip, %rdi\n"
        "    movl $58, %eax\n"
        "    syscall\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    .cfi_rel_offset %rip, 0\n"
        "    testl %eax, %eax\n"
        "    jz 1f\n"
        "    movl %esi, %fs:(%r8)\n"
        "    js 2f\n"
        "    ret\n"
        "1:  addl $0x10000, %esi\n"
        "    movl %esi, %fs:(%r8)\n"
        "    ret\n"
        "2:  negl %eax\n"
        "    pushq %rax\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call __errno_location@PLT\n"
        "    popq %rcx\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    movl %ecx, (%rax)\n"
        "    movl $-1, %eax\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size vfork, .-vfork\n"
        ".popsection\n");
#elif defined(__aarch64__) && defined(__linux__) && defined(__LP64__)
/* clone(CLONE_VM | CLONE_VFORK | SIGCHLD); the return address is in x30, which both keep. */
__asm__(".pushsection .text\n"
        ".globl vfork\n"
        ".type vfork, %function\n"
        "vfork:\n"
        "    .cfi_startproc\n"
        "    adrp x9, ioprof_num_forks\n"
        "    add x9, x9, :lo12:ioprof_num_forks\n"
        "0:  ldxr w10, [x9]\n"
        "    add w10, w10, #1\n"
        "    stxr w11, w10, [x9]\n"
        "    cbnz w11, 0b\n"
        "    mrs x9, tpidr_el0\n"
        "    adrp x10, :gottprel:ioprof_guard\n"
        "    ldr x10, [x10, :gottprel_lo12:ioprof_guard]\n"
        "    add x9, x9, x10\n"
        "    ldr w10, [x9]\n"
        "    mov x0, #0x4111\n"
        "    mov x1, #0\n"
        "    mov x2, #0\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    mov x8, #220\n"
        "    svc #0\n"
        "    cbz w0, 1f\n"
        "    str w10, [x9]\n"
        "    tbnz w0, #31, 2f\n"
        "    ret\n"
        "1:  add w10, w10, #0x10, lsl #12\n"
        "    str w10, [x9]\n"
        "    ret\n"
        "2:  stp x29, x30, [sp, #-32]!\n"
        "    .cfi_adjust_cfa_offset 32\n"
        "    .cfi_rel_offset x29, 0\n"
        "    .cfi_rel_offset x30, 8\n"
        "    str w0, [sp, #16]\n"
        "    bl __errno_location\n"
        "    ldr w1, [sp, #16]\n"
        "    neg w1, w1\n"
        "    str w1, [x0]\n"
        "    mov w0, #-1\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_adjust_cfa_offset -32\n"
        "    .cfi_restore x29\n"
        "    .cfi_restore x30\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size vfork, .-vfork\n"
        ".popsection\n");
#endif

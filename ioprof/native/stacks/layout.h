/* Where an interpreter keeps what a sample needs: byte offsets, which ioprof/stacks/layouts.py
 * fills in by Python's version. */

#ifndef IOPROF_STACKS_LAYOUT_H
#define IOPROF_STACKS_LAYOUT_H

#include <stdint.h>

/* All fields are uint64, so that Python can pass them as an array. */
struct layout {
    uint64_t code_type; /* address of PyCode_Type */
    uint64_t
        thread_frame; /* in a thread's state: its current frame or, before 3.13, its _PyCFrame */
    uint64_t has_cframe;
    uint64_t cframe_frame; /* in a _PyCFrame: the current frame */
    uint64_t frame_previous;
    uint64_t frame_code;
    uint64_t frame_instruction;
    uint64_t frame_owner;
    uint64_t first_foreign_owner; /* frames with this owner or a higher one run no Python code */
    uint64_t thread_native_id;    /* in a thread's state: its number */
    uint64_t code_filename;
    uint64_t code_qualname;
    uint64_t code_linetable;
    uint64_t code_firstlineno;
    uint64_t code_instructions;
    uint64_t text_ascii; /* where the characters of an ASCII string are, and of another */
    uint64_t text_compact;
};

#endif

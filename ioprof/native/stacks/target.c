#include "target.h"

#include <errno.h>
#include <stdlib.h>

#include "codes.h"
#include "lock.h"

#define MOST_STACKS (1u << 18)
#define MOST_VISITED \
    4096u                 /* frames: a chain that was changed while it was read might be a circle */
#define HOLDER_ATTEMPTS 3 /* it runs all the time, so its stack may change while it is read */
#define CODE_MASK (~UINT64_C(7)) /* 3.14 marks references in their lowest bits */

struct frame {
    uint32_t code;
    int32_t instruction;
};

/* Whether the state is still that of the thread: the memory of one that has ended may be another's.
 */
static bool is_of_thread(struct view *view, const struct target *target)
{
    uint64_t number;
    return !target->thread ||
           (load(view, target->thread_state + target->layout.thread_native_id, &number) &&
            number == target->thread);
}

static bool current_frame(struct view *view, const struct layout *layout, uint64_t thread_state,
                          uint64_t *frame)
{
    if (!load(view, thread_state + layout->thread_frame, frame))
        return false;
    return !layout->has_cframe || (*frame && load(view, *frame + layout->cframe_frame, frame));
}

/* The frames of a thread, innermost first; -1 where it changed its stack meanwhile, so that what
 * was read makes no sense.
 *
 * The thread runs on while it is read. What a frame that has just ended left behind is still a
 * frame, whose callers are those of the frame that took its place, so a stack that was read within
 * a microsecond is one that the thread had in that microsecond, except where a frame was read while
 * it was made: then its code and its instruction do not fit.
 */
static int read_frames(struct shared *shared, struct target *target, uint64_t thread_state,
                       uint64_t now_ns, struct frame *frames)
{
    struct view *view = &shared->view;
    const struct layout *layout = &target->layout;
    uint64_t frame;
    unsigned count = 0;
    if (!current_frame(view, layout, thread_state, &frame))
        return -1;
    for (unsigned visited = 0; frame; visited++) {
        uint64_t owner, address, instruction, previous;
        if (visited == MOST_VISITED ||
            !load(view, frame + (layout->frame_owner & CODE_MASK), &owner) ||
            !load(view, frame + layout->frame_previous, &previous) || previous == frame)
            return -1;
        if ((owner >> 8 * (layout->frame_owner & 7) & 0xff) < layout->first_foreign_owner) {
            if (!load(view, frame + layout->frame_code, &address) ||
                !load(view, frame + layout->frame_instruction, &instruction))
                return -1;
            const struct code *code = code_at(shared, target, address & CODE_MASK, now_ns);
            if (!code)
                return -1;
            int64_t offset = (int64_t)(instruction - code->address - layout->code_instructions);
            if (offset < -2 || offset % 2 || offset / 2 >= code->instructions)
                return -1;
            frames[count++] = (struct frame){code->number, (int32_t)(offset / 2)};
            if (count == MOST_FRAMES)
                return (int)count;
        }
        frame = previous;
    }
    return (int)count;
}

static uint32_t stack_number(struct shared *shared, const struct frame *frames, unsigned count)
{
    uint64_t hash = hash_bytes(HASH_START, frames, count * sizeof *frames);
    uint32_t number = find(&shared->stacks, hash);
    if (number != NOT_FOUND || shared->stacks.count >= MOST_STACKS)
        return number;
    number = (uint32_t)shared->stacks.count;
    if (!insert(&shared->stacks, hash, number))
        return NOT_FOUND;
    struct piece pieces[] = {{&number, sizeof number}, {frames, count * sizeof *frames}};
    write_record(&shared->output, STACK_RECORD, pieces, 2);
    return number;
}

/* Writes which thread holds the lock that the target's thread waits for, and its stack. The view is
 * that of the target's sample. */
static void sample_holder(struct shared *shared, struct target *target, uint64_t thread_state,
                          uint64_t now_ns)
{
    struct frame frames[MOST_FRAMES];
    int count = -1;
    for (int attempt = 0; count < 0 && attempt < HOLDER_ATTEMPTS; attempt++) {
        if (attempt)
            begin_view(&shared->view, target->pid, target->pages, target->num_pages);
        count = read_frames(shared, target, thread_state, now_ns, frames);
    }
    uint64_t number;
    if (!load(&shared->view, thread_state + target->layout.thread_native_id, &number))
        return;
    struct holder holder = {now_ns, target->number, NOT_FOUND, (uint32_t)number, 0};
    if (count > 0)
        holder.stack = stack_number(shared, frames, (unsigned)count);
    write_record(&shared->output, HOLDER_RECORD, &(struct piece){&holder, sizeof holder}, 1);
}

void sample_target(struct shared *shared, struct target *target, uint64_t now_ns)
{
    struct frame frames[MOST_FRAMES];
    begin_view(&shared->view, target->pid, target->pages, target->num_pages);
    if (!is_of_thread(&shared->view, target)) {
        target->error = ESRCH;
        return;
    }
    int count = read_frames(shared, target, target->thread_state, now_ns, frames);
    uint64_t holder = count > 0 ? awaited_holder(&shared->view, target) : 0;
    target->num_pages = used_pages(&shared->view, target->pages);
    if (count < 0) {
        target->torn++;
        target->failures++;
        target->error = shared->view.error;
        return;
    }
    target->failures = 0;
    target->error = 0;
    if (!count) {
        target->idle++;
        return;
    }
    uint32_t stack = stack_number(shared, frames, (unsigned)count);
    if (stack == NOT_FOUND) {
        shared->full++;
        return;
    }
    write_sample(&shared->output, (struct sample){now_ns, target->number, stack});
    target->samples++;
    if (holder)
        sample_holder(shared, target, holder, now_ns);
}

void free_target(struct target *target)
{
    struct known_codes *known = target->known;
    if (--known->users)
        return;
    free_table(&known->places);
    free(known->code);
    free(known);
}

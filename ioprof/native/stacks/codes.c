#include "codes.h"

#include <stdlib.h>
#include <string.h>

#define CHECK_AFTER_NS UINT64_C(5000000000)
#define CHECK_AT_LEAST_AFTER_NS UINT64_C(80000000000)
#define HEAD_BYTES 256u /* of a code object: all that is read of it */
#define MOST_CODES (1u << 18)
#define SIZE_OFFSET 16u  /* of ob_size in a PyVarObject, and of the length in a PyASCIIObject */
#define BYTES_OFFSET 32u /* of the content of a PyBytesObject */
#define TEXT_STATE_OFFSET 32u
#define TEXT_KIND_SHIFT \
    2 /* past the bits of PyASCIIObject.state that say whether the string is interned */

bool fits(const struct layout *layout)
{
    const uint64_t last = HEAD_BYTES - sizeof(uint64_t);
    return layout->code_filename <= last && layout->code_qualname <= last &&
           layout->code_linetable <= last && layout->code_firstlineno <= last;
}

static uint64_t word(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static bool read_text(const struct target *target, uint64_t address, struct text *text)
{
    uint8_t head[TEXT_STATE_OFFSET + 8];
    if (copy_memory(target->pid, address, head, sizeof head))
        return false;
    uint64_t length = word(head + SIZE_OFFSET);
    uint32_t state = (uint32_t)word(head + TEXT_STATE_OFFSET) >> TEXT_KIND_SHIFT;
    uint32_t kind = state & 7, compact = state >> 3 & 1, ascii = state >> 4 & 1;
    if (length > LONGEST_TEXT || !compact || (kind != 1 && kind != 2 && kind != 4) ||
        (ascii && kind != 1))
        return false;
    uint64_t start = ascii ? target->layout.text_ascii : target->layout.text_compact;
    text->width = kind;
    text->bytes = (uint32_t)length * kind;
    return !length || !copy_memory(target->pid, address + start, text->content, text->bytes);
}

static bool read_table(const struct target *target, uint64_t address, uint8_t *table,
                       uint32_t *bytes)
{
    uint64_t length;
    if (copy_memory(target->pid, address + SIZE_OFFSET, &length, sizeof length) ||
        length > LONGEST_TABLE)
        return false;
    *bytes = (uint32_t)length;
    return !length || !copy_memory(target->pid, address + BYTES_OFFSET, table, length);
}

/* The number of a code object by its content, which is written to the file where no process had it
 * before. */
static uint32_t number_of(struct shared *shared, const struct target *target,
                          const struct code *code)
{
    struct text *filename = &shared->filename, *qualname = &shared->qualname;
    uint8_t *table = shared->table;
    uint32_t bytes, firstlineno = (uint32_t)code->identity[3];
    if (!read_text(target, code->identity[0], filename) ||
        !read_text(target, code->identity[1], qualname) ||
        !read_table(target, code->identity[2], table, &bytes))
        return NOT_FOUND;
    uint64_t hash = hash_bytes(HASH_START, filename->content, filename->bytes);
    hash = hash_bytes(hash, qualname->content, qualname->bytes);
    hash = hash_bytes(hash_bytes(hash, &firstlineno, sizeof firstlineno), table, bytes);
    uint32_t number = find(&shared->codes, hash);
    if (number != NOT_FOUND)
        return number;
    number = (uint32_t)shared->codes.count;
    if (number >= MOST_CODES || !insert(&shared->codes, hash, number))
        return NOT_FOUND;
    uint32_t head[] = {number,          firstlineno,     filename->width,
                       filename->bytes, qualname->width, qualname->bytes};
    struct piece pieces[] = {{head, sizeof head},
                             {filename->content, filename->bytes},
                             {qualname->content, qualname->bytes},
                             {table, bytes}};
    write_record(&shared->output, CODE_RECORD, pieces, 4);
    return number;
}

static struct code *new_code(struct known_codes *known, uint64_t address)
{
    if (known->count == known->room) {
        size_t room = known->room ? 2 * known->room : 128;
        struct code *larger = realloc(known->code, room * sizeof *larger);
        if (!larger)
            return NULL;
        known->code = larger;
        known->room = room;
    }
    if (known->count >= MOST_CODES || !insert(&known->places, address, (uint32_t)known->count))
        return NULL;
    struct code *code = &known->code[known->count++];
    *code = (struct code){.address = address, .number = NOT_FOUND};
    return code;
}

static const struct code *read_code(struct shared *shared, struct target *target, uint64_t address,
                                    uint32_t place, uint64_t now_ns)
{
    const struct layout *layout = &target->layout;
    uint8_t head[HEAD_BYTES];
    if (copy_memory(target->pid, address, head, sizeof head) || word(head + 8) != layout->code_type)
        return NULL;
    uint64_t identity[4] = {word(head + layout->code_filename), word(head + layout->code_qualname),
                            word(head + layout->code_linetable),
                            (uint32_t)word(head + layout->code_firstlineno)};
    struct code *code =
        place != NOT_FOUND ? &target->known->code[place] : new_code(target->known, address);
    if (!code)
        return NULL;
    code->checked_ns = now_ns;
    code->check_after_ns *= 2; /* what has stayed for long is likely to stay */
    if (code->check_after_ns > CHECK_AT_LEAST_AFTER_NS)
        code->check_after_ns = CHECK_AT_LEAST_AFTER_NS;
    if (code->number == NOT_FOUND || memcmp(identity, code->identity, sizeof identity)) {
        memcpy(code->identity, identity, sizeof identity);
        code->check_after_ns = CHECK_AFTER_NS;
        code->instructions = (int64_t)word(head + SIZE_OFFSET);
        code->number = number_of(shared, target, code);
    }
    return code->number == NOT_FOUND ? NULL : code;
}

const struct code *code_at(struct shared *shared, struct target *target, uint64_t address,
                           uint64_t now_ns)
{
    uint32_t place = find(&target->known->places, address);
    if (place != NOT_FOUND) {
        const struct code *known = &target->known->code[place];
        if (known->number != NOT_FOUND && now_ns - known->checked_ns < known->check_after_ns)
            return known;
    }
    uint64_t began_ns = clock_ns(CLOCK_MONOTONIC);
    const struct code *code = read_code(shared, target, address, place, now_ns);
    shared->reading_ns += clock_ns(CLOCK_MONOTONIC) - began_ns;
    return code;
}

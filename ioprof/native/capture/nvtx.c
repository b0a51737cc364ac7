/* Operators of NVIDIA DALI. They run in threads of C++, and DALI names each in a range of NVTX, for
 * a tool that the variable NVTX_INJECTION64_PATH names (hooks/libraries/dali.py). This is the part
 * of that interface which is used here, as in nvtx3/nvtxDetail/nvtxTypes.h: in a program that gives
 * no ranges nothing of it is called. */
#include "events.h"
#include "string_table.h"

#define CALLBACKS 1 /* NVTX_ETID_CALLBACKS */
#define CORE2 5     /* NVTX_CB_MODULE_CORE2, of which these are the functions that are wanted */
enum { RANGE_PUSH = 4, RANGE_POP = 5, CREATE_DOMAIN = 12 };
#define ASCII 1 /* NVTX_MESSAGE_TYPE_ASCII */

typedef void (*function)(void);

struct callbacks {
    size_t size;
    int (*functions)(int module, function ***found, unsigned *count);
};

struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
};

static char dali; /* its address stands for DALI's domain; others are not followed */

/* Ranges of a thread that it has not left, and the one among them that is an operator. */
static __thread struct {
    int depth, depth_of_operator; /* 0: none */
    enum ioprof_kind kind;
    int64_t start_ns;
    char name[48];
} ranges;

/* Where the text begins with this, what follows; else NULL. */
static const char *after(const char *text, const char *beginning)
{
    size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : NULL;
}

static void begin_operator(const char *message)
{
    const char *name = after(message, "[DALI][CPU op] Run ");
    if (name == NULL)
        name = after(message, "[DALI][Mixed op] Run ");
    if (name == NULL || after(name, "readers") != NULL) /* reads have spans of their own */
        return;
    ranges.kind = KIND_TRANSFORM;
    if (after(name, "decoders") != NULL || after(name, "experimental__decoders") != NULL)
        ranges.kind = KIND_DECODE;
    else if (after(name, "MakeContiguous") != NULL)
        ranges.kind = KIND_COLLATE;
    size_t length = strnlen(name, sizeof ranges.name - sizeof "DALI ");
    memcpy(ranges.name, "DALI ", 5);
    memcpy(ranges.name + 5, name, length);
    ranges.name[5 + length] = 0;
    ranges.depth_of_operator = ranges.depth;
    ranges.start_ns = clock_now();
}

static int push(void *domain, const struct attributes *attributes)
{
    if (domain != &dali)
        return 0;
    ranges.depth++;
    if (ranges.depth_of_operator == 0 && attributes->message_type == ASCII &&
        attributes->message != NULL && is_recording_already())
        begin_operator(attributes->message);
    return ranges.depth - 1;
}

static int pop(void *domain)
{
    if (domain != &dali || ranges.depth == 0)
        return 0;
    if (ranges.depth == ranges.depth_of_operator && is_recording_already()) {
        guard_enter();
        emit_event(&(struct event){ranges.start_ns, clock_now(), -1, -1, -1,
                                   text_number(ranges.name, strlen(ranges.name)), ranges.kind,
                                   SOURCE_NONE});
        guard_leave();
    }
    if (ranges.depth == ranges.depth_of_operator)
        ranges.depth_of_operator = 0;
    return --ranges.depth;
}

static void *create_domain(const char *name)
{
    return name != NULL && strcmp(name, "DALI") == 0 ? &dali : NULL;
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(const void *(*table)(uint32_t number))
{
    const struct callbacks *callbacks = table(CALLBACKS);
    function **functions;
    unsigned count;
    if (callbacks == NULL || callbacks->size < sizeof *callbacks ||
        !callbacks->functions(CORE2, &functions, &count) || count <= CREATE_DOMAIN)
        return 0;
    *functions[RANGE_PUSH] = (function)push;
    *functions[RANGE_POP] = (function)pop;
    *functions[CREATE_DOMAIN] = (function)create_domain;
    return 1;
}

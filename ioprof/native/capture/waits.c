#include "waits.h"

#include "real.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

struct waiters_known waiters_known = {0, false, -1};

#define LAST_WAKES 4

/* The thread's last block, and what it woke last. */
static __thread struct {
    struct ioprof_record *block;
    uint64_t state_after; /* of the thread's chunk when `block` was written */
    struct {
        uint64_t object;
        int64_t ns;
    } wakes[LAST_WAKES];
} last;

/* --------------------------------------------------------------------- what the C library says */

/* The fields are those of glibc since 2.25. A new one may move them, as 2.41 did with those of
 * conditions, so that each is looked for where objects of known state have it. */
void waits_setup(void)
{
    pthread_mutexattr_t shared_lock;
    pthread_condattr_t shared_condition;
    union {
        pthread_mutex_t lock;
        pthread_cond_t condition;
        sem_t semaphore;
        int words[16];
    } tried;
    memset(&tried, 0, sizeof tried);
    pthread_mutexattr_init(&shared_lock);
    pthread_mutexattr_setpshared(&shared_lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&tried.lock, &shared_lock);
    pthread_mutexattr_destroy(&shared_lock);
    bool is_free = tried.words[0] == 0 && tried.words[4] == 128;
    pthread_mutex_trylock(&tried.lock);
    waiters_known.waited_lock = is_free && tried.words[0] == 1 ? 2 : 0;
    pthread_mutex_unlock(&tried.lock);
    memset(&tried, 0, sizeof tried);
    sem_init(&tried.semaphore, 1, 5);
    waiters_known.of_semaphores =
        sizeof(long) == 8 && tried.words[0] == 5 && tried.words[1] == 0 && tried.words[2] == 128;
    memset(&tried, 0, sizeof tried);
    pthread_condattr_init(&shared_condition);
    pthread_condattr_setpshared(&shared_condition, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&shared_condition, CLOCK_MONOTONIC);
    pthread_cond_init(&tried.condition, &shared_condition);
    pthread_condattr_destroy(&shared_condition);
    for (int place = 0; place < (int)(sizeof tried.condition / sizeof(int)); place++)
        if (tried.words[place] == 3) /* shared, and of that clock */
            waiters_known.place_in_condition = place;
}

/* ------------------------------------------------------------------------------------- records */

static void put(int64_t start, int64_t end, enum ioprof_kind kind, enum ioprof_object object_kind,
                uint64_t object, int64_t how, int32_t status)
{
    struct ioprof_record *record = ring_reserve(&ring, &writer, 1);
    if (record == NULL)
        return;
    *record = IOPROF_EMPTY_RECORD;
    record->start_ns = start;
    record->end_ns = end;
    record->bytes = how;
    record->step = status;
    record->offset = (int64_t)object;
    record->kind = (uint8_t)kind;
    record->source = (uint8_t)object_kind;
    ring_publish(&writer, 1);
    if (kind == KIND_BLOCK) {
        last.block = record;
        last.state_after = writer.state;
    }
}

/* Whether the thread's last record of this recording is a block on the same object that ended just
 * before, because its time was over: CPython waits for its lock in pieces of 5 ms. */
static bool goes_on(int64_t start, enum ioprof_object kind, uint64_t object)
{
    if (last.block == NULL || writer.chunk == NULL || last.state_after != writer.state ||
        writer.generation != atomic_load_explicit(&ring.generation, memory_order_relaxed) ||
        last.block != &writer.chunk->slots[(uint32_t)writer.state - 1])
        return false;
    return last.block->offset == (int64_t)object && last.block->source == (uint8_t)kind &&
           last.block->bytes == END_TIME_WAS_OVER && start - last.block->end_ns < SAME_WAIT_NS;
}

void emit_block(int64_t start, int64_t end, enum ioprof_object kind, uint64_t object,
                enum ioprof_end how)
{
    guard_enter();
    if (goes_on(start, kind, object)) {
        last.block->bytes = how;
        __atomic_store_n(&last.block->end_ns, end, __ATOMIC_RELEASE);
    } else {
        put(start, end, KIND_BLOCK, kind, object, how, -1);
    }
    guard_leave();
}

void emit_wake(int64_t start, int64_t end, enum ioprof_object kind, uint64_t object)
{
    uint64_t key = object ^ (uint64_t)kind << 56;
    __auto_type before = &last.wakes[(object >> 4 ^ kind) % LAST_WAKES];
    bool is_again = before->object == key && start - before->ns < LEAST_BLOCK_NS;
    before->object = key;
    before->ns = end;
    if (is_again)
        return;
    guard_enter();
    put(start, end, KIND_WAKE, kind, object, END_WOKEN, -1);
    guard_leave();
}

void emit_hang_up(int64_t now, uint64_t channel)
{
    guard_enter();
    put(now, now, KIND_WAKE, OBJECT_CHANNEL, channel, END_HUNG_UP, -1);
    guard_leave();
}

void emit_exit(void)
{
    if (!is_recording_already())
        return;
    int64_t now = clock_now();
    guard_enter();
    put(now, now, KIND_WAKE, OBJECT_PROCESS, file_header.pid, END_HUNG_UP, -1);
    guard_leave();
}

void emit_reaped(int64_t now, uint64_t child, int status)
{
    if (!is_recording_already())
        return;
    guard_enter();
    put(now, now, KIND_WAKE, OBJECT_PROCESS, child, END_REAPED, status);
    guard_leave();
}

/* ------------------------------------------------------------------------ what processes share */

#define SHARED_OBJECTS 256
#define MAPPING_BYTES 96 /* of a line before its path */

/* By address. Two words that are written without a lock: `check` tells an entry of which one word
 * is of another address. A forked child has the same mappings. */
static struct {
    ioprof_counter check, object;
} shared_objects[SHARED_OBJECTS];

static uint64_t hexadecimal(const char **text)
{
    uint64_t value = 0;
    for (;; (*text)++) {
        char letter = **text;
        if (letter >= '0' && letter <= '9')
            value = value << 4 | (uint64_t)(letter - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value << 4 | (uint64_t)(letter - 'a' + 10);
        else
            break;
    }
    return value;
}

/* A line "start-end access offset device inode" of /proc/self/maps; 0: the address is elsewhere.
 * Its inode is decimal, which does as a number too. */
static uint64_t object_in_mapping(const char *line, uint64_t address)
{
    uint64_t start = hexadecimal(&line);
    if (*line++ != '-' || address < start || address >= hexadecimal(&line))
        return 0;
    if (strlen(line) < 7)
        return address;
    line += 6;
    uint64_t offset = hexadecimal(&line);
    uint64_t major = (line++, hexadecimal(&line)), minor = (line++, hexadecimal(&line));
    uint64_t inode = (line++, hexadecimal(&line));
    if (inode == 0) /* nobody else has it */
        return address;
    return object_hash(inode << 24 ^ major << 12 ^ minor, address - start + offset);
}

static uint64_t find_shared_object(uint64_t address)
{
    char text[1024], line[MAPPING_BYTES + 1];
    size_t length = 0;
    uint64_t found = 0;
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    for (ssize_t got = 1; file >= 0 && found == 0 && got > 0;) {
        got = real_system_call(SYS_read, file, (long)text, sizeof text, 0, 0, 0);
        atomic_fetch_add(&process->own_calls, 1);
        atomic_fetch_add(&process->own_bytes, got > 0 ? got : 0);
        for (ssize_t place = 0; place < got && found == 0; place++) {
            if (text[place] != '\n') {
                if (length < MAPPING_BYTES)
                    line[length++] = text[place];
                continue;
            }
            line[length] = '\0';
            length = 0;
            found = object_in_mapping(line, address);
        }
    }
    if (file >= 0)
        close(file);
    return found == 0 ? address : found;
}

uint64_t shared_object(const void *address)
{
    uint64_t key = (uint64_t)(uintptr_t)address;
    __auto_type known = &shared_objects[(key >> 4) % SHARED_OBJECTS];
    uint64_t object = atomic_load_explicit(&known->object, memory_order_relaxed);
    if (object != 0 && atomic_load_explicit(&known->check, memory_order_relaxed) == (object ^ key))
        return object;
    int saved_errno = begin_own_work();
    object = find_shared_object(key);
    end_own_work(saved_errno);
    atomic_store_explicit(&known->object, object, memory_order_relaxed);
    atomic_store_explicit(&known->check, object ^ key, memory_order_relaxed);
    return object;
}

void forget_shared_object(const void *address)
{
    uint64_t key = (uint64_t)(uintptr_t)address;
    atomic_store_explicit(&shared_objects[(key >> 4) % SHARED_OBJECTS].object, 0,
                          memory_order_relaxed);
}

#include "process.h"

#include "decimal.h"
#include "io_counters.h"
#include "real.h"
#include "usage.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct process_state unrecorded; /* until the constructor has run */
struct process_state *process = &unrecorded;
struct ioprof_ring ring;
__thread struct ioprof_writer writer;
_Atomic int recording_mode;
struct ioprof_file_header file_header;
char spool[3072];
size_t spool_length;
bool program_is_python;
uint32_t program_pid;

bool map_process_state(void)
{
    struct process_state *pages =
        mmap(NULL, sizeof *pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return false;
    madvise(pages, sizeof *pages,
            MADV_WIPEONFORK); /* Linux 4.14; on older kernels reset_process_state has to do */
    process = pages;
    return true;
}

void reset_process_state(void)
{
    memset((void *)process, 0, sizeof *process);
    forget_usage();
}

/* The wall clock between two readings of the monotonic one, the closest of five. */
static void take_anchor(void)
{
    int64_t closest = INT64_MAX;
    for (int attempt = 0; attempt < 5; attempt++) {
        struct timespec wall;
        int64_t before = ring_now();
        clock_gettime(CLOCK_REALTIME, &wall);
        int64_t after = ring_now();
        if (after - before >= closest)
            continue;
        closest = after - before;
        file_header.anchor_before_ns = before;
        file_header.anchor_wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
        file_header.anchor_after_ns = after;
    }
}

/* SPOOL/HOST-PID-NS.ring, but for a rehearsal, whose spool is the file. */
static void make_path(char *path)
{
    memcpy(path, spool, spool_length + 1);
    if (strncmp(spool, IOPROF_REHEARSAL, sizeof IOPROF_REHEARSAL - 1) == 0)
        return;
    path += spool_length;
    *path++ = '/';
    size_t host = strnlen(file_header.host, sizeof file_header.host);
    memcpy(path, file_header.host, host);
    path += host;
    *path++ = '-';
    path = append_decimal(path, file_header.pid);
    *path++ = '-';
    path = append_decimal(path, (uint64_t)file_header.anchor_before_ns);
    memcpy(path, ".ring", sizeof ".ring");
}

static uint32_t begin_file(void)
{
    char path[sizeof spool + 128];
    if (ring_is_open(&ring))
        ring_forget(&ring); /* the parent's */
    forget_usage(); /* the child may not have been made by fork, so that reset_process_state was not
                       called */
    file_header.pid = (uint32_t)real_system_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
    file_header.parent_pid = (uint32_t)real_system_call(SYS_getppid, 0, 0, 0, 0, 0, 0);
    file_header.noted =
        program_is_python && file_header.pid == program_pid ? NOTED_PYTHON_PROGRAM : 0;
    take_anchor();
    make_path(path);
    if (ring_open(&ring, path, &file_header) != 0)
        return RECORDING_FAILED;
    begin_counters();
    return atomic_load(&ring.generation);
}

/* Other threads wait for the one that creates the file, some milliseconds at most: their calls
 * would otherwise not be seen. */
static void begin_process(void)
{
    if (atomic_exchange(&process->beginning, 1) == 0) {
        uint32_t generation = begin_file();
        atomic_store(&process->generation, generation);
        if (generation != RECORDING_FAILED)
            compare_counters(ring_now(), false);
        return;
    }
    for (int attempt = 0; attempt < 10000 && atomic_load(&process->generation) == 0; attempt++)
        sched_yield();
}

__attribute__((noinline)) bool begin_recording(void)
{
    if (atomic_load(&recording_mode) != MODE_ON ||
        atomic_load(&process->generation) == RECORDING_FAILED)
        return false;
    int saved_errno = begin_own_work();
    begin_process();
    end_own_work(saved_errno);
    return has_begun();
}

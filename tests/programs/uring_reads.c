/* Reads a file by io_uring and prints the bytes: uring_reads PART FILE. The parts differ in how the
 * ring is made and entered. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 4096
#define DEPTH 32
#define THREADS 4

static __thread char buffers[DEPTH][BLOCK] __attribute__((aligned(BLOCK)));
static long total;

static void count(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", strerror(-result));
        exit(1);
    }
    __atomic_fetch_add(&total, result, __ATOMIC_RELAXED);
}

static int must(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", strerror(-result));
        exit(result == -ENOSYS || result == -EPERM ? 77 : 1);
    }
    return result;
}

/* liburing: batches of DEPTH, or one at a time; with `vectors` by readv, with `fixed` from
 * registered files. */
static void by_liburing(int file, long blocks, int depth, bool vectors, bool fixed)
{
    struct io_uring ring;
    struct iovec parts[DEPTH];
    must(io_uring_queue_init(DEPTH, &ring, 0));
    if (fixed)
        must(io_uring_register_files(&ring, &file, 1));
    for (long block = 0; block < blocks;) {
        int made = 0;
        for (; made < depth && block < blocks; made++, block++) {
            struct io_uring_sqe *request = io_uring_get_sqe(&ring);
            parts[made] = (struct iovec){buffers[made], BLOCK};
            if (vectors)
                io_uring_prep_readv(request, file, &parts[made], 1, block * BLOCK);
            else
                io_uring_prep_read(request, fixed ? 0 : file, buffers[made], BLOCK, block * BLOCK);
            if (fixed)
                io_uring_sqe_set_flags(request, IOSQE_FIXED_FILE);
            io_uring_sqe_set_data64(request, (unsigned long)made);
        }
        must(io_uring_submit(&ring));
        for (int done = 0; done < made; done++) {
            struct io_uring_cqe *completion;
            must(io_uring_wait_cqe(&ring, &completion));
            count(completion->res);
            io_uring_cqe_seen(&ring, completion);
        }
    }
    io_uring_queue_exit(&ring);
}

/* By system calls of the C library's `syscall`, as the crate io-uring makes them. With `poll` the
 * kernel's own thread takes the requests (IORING_SETUP_SQPOLL). */
static void by_number(int file, long blocks, int depth, bool poll)
{
    struct io_uring_params made;
    memset(&made, 0, sizeof made);
    made.flags = poll ? IORING_SETUP_SQPOLL : 0;
    made.sq_thread_idle = 1000;
    int ring = (int)syscall(SYS_io_uring_setup, DEPTH, &made);
    must(ring < 0 ? -errno : ring);
    char *to = mmap(NULL, made.sq_off.array + made.sq_entries * 4, PROT_READ | PROT_WRITE,
                    MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *from = mmap(NULL, made.cq_off.cqes + made.cq_entries * 16, PROT_READ | PROT_WRITE,
                      MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *requests = mmap(NULL, made.sq_entries * sizeof *requests,
                                         PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    unsigned *tail = (unsigned *)(to + made.sq_off.tail),
             *array = (unsigned *)(to + made.sq_off.array);
    unsigned *head = (unsigned *)(from + made.cq_off.head),
             *end = (unsigned *)(from + made.cq_off.tail);
    unsigned mask = *(unsigned *)(to + made.sq_off.ring_mask),
             other = *(unsigned *)(from + made.cq_off.ring_mask);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)(from + made.cq_off.cqes);
    for (long block = 0; block < blocks;) {
        int number = 0;
        for (; number < depth && block < blocks; number++, block++) {
            unsigned place = (*tail + (unsigned)number) & mask;
            memset(&requests[place], 0, sizeof *requests);
            requests[place].opcode = IORING_OP_READ;
            requests[place].fd = file;
            requests[place].addr = (unsigned long)buffers[number];
            requests[place].len = BLOCK;
            requests[place].off = (unsigned long)block * BLOCK;
            array[place] = place;
        }
        __atomic_store_n(tail, *tail + (unsigned)number, __ATOMIC_RELEASE);
        unsigned flags = IORING_ENTER_GETEVENTS | (poll ? IORING_ENTER_SQ_WAKEUP : 0);
        must(syscall(SYS_io_uring_enter, ring, poll ? 0 : number, number, flags, NULL, 0) < 0
                 ? -errno
                 : 0);
        for (int done = 0; done < number;
             done++, __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE)) {
            while (*head == __atomic_load_n(end, __ATOMIC_ACQUIRE)) {
            }
            count(completions[*head & other].res);
        }
    }
    munmap(to, made.sq_off.array + made.sq_entries * 4);
    munmap(from, made.cq_off.cqes + made.cq_entries * 16);
    close(ring);
}

struct work {
    int file;
    long blocks;
};

static void *read_all(void *given)
{
    const struct work *work = given;
    by_liburing(work->file, work->blocks, DEPTH, false, false);
    return NULL;
}

/* Each thread with a ring of its own, which it makes and ends while others read. */
static void by_threads(int file, long blocks)
{
    pthread_t threads[THREADS];
    struct work work = {file, blocks};
    for (int thread = 0; thread < THREADS; thread++)
        must(-pthread_create(&threads[thread], NULL, read_all, &work));
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
}

int main(int argc, char **arguments)
{
    const char *part = argc > 2 ? arguments[1] : "";
    int file =
        argc > 2 ? open(arguments[2], O_RDONLY | (strcmp(part, "direct") == 0 ? O_DIRECT : 0)) : -1;
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0)
        return 1;
    long blocks = status.st_size / BLOCK;
    if (strcmp(part, "numbers") == 0)
        by_number(file, blocks, 1, false);
    else if (strcmp(part, "batches") == 0)
        by_number(file, blocks, DEPTH, false);
    else if (strcmp(part, "threads") == 0)
        by_threads(file, blocks);
    else if (strcmp(part, "poll") == 0)
        by_number(file, blocks, DEPTH, true);
    else
        by_liburing(file, blocks, strcmp(part, "single") == 0 ? 1 : DEPTH,
                    strcmp(part, "vectors") == 0, strcmp(part, "fixed") == 0);
    printf("%ld\n", total);
    return 0;
}

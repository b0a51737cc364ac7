/* What can break a program whose functions a library interposes. Arguments: WHAT FOLDER. Each part
 * checks for itself that the program got what it would have got without the library; its exit code
 * is 0 if so. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

#define THREADS 8
#define ROUNDS 400
#define RECORD 5000

static const char *folder;

static const char *in_folder(char *path, const char *name, int number)
{
    snprintf(path, 4096, "%s/%s%d", folder, name, number);
    return path;
}

/* A file whose every byte is its number's. */
static void make_file(const char *name, int number, size_t size)
{
    char path[4096], *bytes = malloc(size);
    memset(bytes, number + 1, size);
    int descriptor = open(in_folder(path, name, number), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(descriptor >= 0 && write(descriptor, bytes, size) == (ssize_t)size);
    close(descriptor);
    free(bytes);
}

static void read_file(const char *name, int number, size_t size)
{
    char path[4096], bytes[RECORD];
    struct stat status;
    int descriptor = open(in_folder(path, name, number), O_RDONLY | O_CLOEXEC);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0 && (size_t)status.st_size == size);
    size_t done = 0;
    ssize_t got;
    while ((got = read(descriptor, bytes, sizeof bytes)) > 0) {
        for (ssize_t place = 0; place < got; place += 499)
            CHECK(bytes[place] == (char)(number + 1));
        done += (size_t)got;
    }
    CHECK(got == 0 && done == size && lseek(descriptor, 0, SEEK_CUR) == (off_t)size);
    CHECK(close(descriptor) == 0);
}

/* An address that is none, which the compiler does not see. */
static volatile int count_of_none;

static void keep_errno(void)
{
    char byte;
    errno = 0;
    CHECK(open("/no/such/file", O_RDONLY) == -1 && errno == ENOENT);
    CHECK(fopen("/no/such/file", "r") == NULL && errno == ENOENT);
    CHECK(read(-1, &byte, 1) == -1 && errno == EBADF);
    CHECK(open((const char *)(intptr_t)(count_of_none + 8), O_RDONLY) == -1 && errno == EFAULT);
    CHECK(close(-1) == -1 && errno == EBADF);
    CHECK(sendfile(1, 0, (off_t *)(intptr_t)(count_of_none + 8), 10) == -1);
    CHECK(fcntl(-1, F_GETFL) == -1 && errno == EBADF);
    make_file("errno", 0, 10);
    char path[4096];
    errno = 77;
    int descriptor = open(in_folder(path, "errno", 0), O_RDONLY);
    CHECK(errno == 77);
    CHECK(read(descriptor, &byte, 1) == 1 && errno == 77);
    CHECK(pread(descriptor, &byte, 1, 3) == 1 && errno == 77);
    CHECK(pread(descriptor, &byte, 1, 10) == 0 && errno == 77);
    CHECK(pread(descriptor, &byte, 1, -1) == -1 && errno == EINVAL);
    CHECK(read(descriptor, (void *)(intptr_t)(count_of_none + 8), 1) == -1 && errno == EFAULT);
    CHECK(lseek(descriptor, 0, SEEK_CUR) == 1);
    errno = 77;
    CHECK(close(descriptor) == 0 && errno == 77);
    CHECK(read(open(folder, O_RDONLY | O_DIRECTORY), &byte, 1) == -1 && errno == EISDIR);
}

static void special_calls(void)
{
    struct stat status;
    umask(0);
    int unnamed = open(folder, O_TMPFILE | O_RDWR, 0641);
    if (unnamed >= 0 || errno != EOPNOTSUPP)
        CHECK(unnamed >= 0 && fstat(unnamed, &status) == 0 && (status.st_mode & 07777) == 0641);
    char path[4096];
    int first = open(in_folder(path, "lock", 0), O_CREAT | O_RDWR, 0600),
        second = open(path, O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    CHECK(fcntl(first, F_OFD_SETLK, &lock) == 0);
    CHECK(fcntl(second, F_OFD_SETLK, &lock) == -1 && (errno == EAGAIN || errno == EACCES));
    int memory = (int)syscall(SYS_memfd_create, "sealed", 2 /* MFD_ALLOW_SEALING */);
    CHECK(memory >= 0 && fcntl(memory, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    CHECK(fcntl(memory, F_GET_SEALS) == (F_SEAL_GROW | F_SEAL_SHRINK));
    CHECK(ftruncate(memory, 10) == -1 && errno == EPERM);
    CHECK(syscall(SYS_getpid) == getpid());
    make_file("special", 0, 10);
    read_file("special", 0, 10);
}

/* 70,000 descriptors, or as many as there may be, and a file behind the last of them. */
static void many_descriptors(void)
{
    struct rlimit limit, wanted = {70100, 70100};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (setrlimit(RLIMIT_NOFILE, &wanted) != 0) {
        wanted.rlim_cur = wanted.rlim_max = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_NOFILE, &wanted) == 0);
    }
    make_file("many", 0, 3 * RECORD);
    int last = -1;
    for (rlim_t place = 0; place < wanted.rlim_cur - 100; place++)
        CHECK((last = open("/dev/null", O_RDONLY)) >= 0);
    CHECK(last >= (int)wanted.rlim_cur - 100);
    read_file("many", 0, 3 * RECORD);
    printf("%d\n", (int)wanted.rlim_cur - 100);
}

static void *close_and_reopen(void *argument)
{
    for (int round = 0; round < ROUNDS; round++)
        read_file("storm", (int)(intptr_t)argument, 2 * RECORD + 7);
    return NULL;
}

static void in_threads(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (int place = 0; place < THREADS; place++)
        CHECK(pthread_create(&threads[place], NULL, work, (void *)(intptr_t)place) == 0);
    for (int place = 0; place < THREADS; place++)
        pthread_join(threads[place], NULL);
}

static void storm(void)
{
    for (int place = 0; place < THREADS; place++)
        make_file("storm", place, 2 * RECORD + 7);
    in_threads(close_and_reopen);
}

/* Threads that share a descriptor: each read is whole, and every record is read once. Every third
 * page has to be read again, so that the opener's reads are made in two halves; the other thread
 * comes as it is, or accustomed to finding all in memory, or it only looks where the next read
 * would begin. */
#define RECORDS 1000
#define ACCUSTOMED 64

static int shared_descriptor;
static _Atomic int seen[RECORDS];

static void *read_records(void *argument)
{
    int record[RECORD / sizeof(int)];
    ssize_t got;
    if (argument != NULL) {
        int descriptor = open(argument, O_RDONLY);
        for (int number = 0; number < ACCUSTOMED; number++)
            CHECK(read(descriptor, record, 1) == 1);
        close(descriptor);
    }
    while ((got = read(shared_descriptor, record, sizeof record)) > 0) {
        CHECK(got == sizeof record);
        for (size_t place = 0; place < RECORD / sizeof(int); place++)
            CHECK(record[place] == record[0]);
        seen[record[0]]++;
    }
    return NULL;
}

static void *look_where(void *argument)
{
    off_t place;
    (void)argument;
    while ((place = lseek(shared_descriptor, 0, SEEK_CUR)) < (off_t)RECORDS * RECORD)
        CHECK(place % RECORD == 0);
    return NULL;
}

static void share_position(void)
{
    char path[4096], other[4096];
    int record[RECORD / sizeof(int)];
    make_file("other", 0, ACCUSTOMED);
    in_folder(other, "other", 0);
    int descriptor = open(in_folder(path, "shared", 0), O_CREAT | O_RDWR | O_TRUNC, 0600);
    for (int number = 0; number < RECORDS; number++) {
        for (size_t place = 0; place < RECORD / sizeof(int); place++)
            record[place] = number;
        CHECK(write(descriptor, record, sizeof record) == sizeof record);
    }
    fsync(descriptor);
    close(descriptor);
    for (int round = 0; round < 12; round++) {
        shared_descriptor = open(path, O_RDONLY);
        posix_fadvise(shared_descriptor, 0, 0, POSIX_FADV_RANDOM);
        for (off_t place = 0; place < (off_t)RECORDS * RECORD; place += 3 * 4096)
            posix_fadvise(shared_descriptor, place, 4096, POSIX_FADV_DONTNEED);
        memset((void *)seen, 0, sizeof seen);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, round % 3 == 2 ? look_where : read_records,
                             round % 3 ? other : NULL) == 0);
        read_records(NULL);
        pthread_join(thread, NULL);
        for (int number = 0; number < RECORDS; number++)
            CHECK(seen[number] == 1);
        close(shared_descriptor);
    }
}

/* Children are forked while threads read; each reads from what it inherited, and from a file of its
 * own. */
static _Atomic int stop;

static void *read_until_stopped(void *argument)
{
    while (!stop)
        read_file("fork", (int)(intptr_t)argument, 2 * RECORD);
    return NULL;
}

static void fork_while_reading(void)
{
    char path[4096], bytes[RECORD];
    pthread_t threads[THREADS];
    for (int place = 0; place < THREADS; place++)
        make_file("fork", place, 2 * RECORD);
    for (int place = 0; place < THREADS; place++)
        CHECK(pthread_create(&threads[place], NULL, read_until_stopped, (void *)(intptr_t)place) ==
              0);
    for (int round = 0; round < 20; round++) {
        int status, inherited = open(in_folder(path, "fork", 0), O_RDONLY);
        CHECK(read(inherited, bytes, 10) == 10);
        pid_t child = fork();
        if (child == 0) {
            CHECK(read(inherited, bytes, 100) == 100 && lseek(inherited, 0, SEEK_CUR) == 110);
            for (int place = 0; place < THREADS; place++)
                read_file("fork", place, 2 * RECORD);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(read(inherited, bytes, 5) == 5 && lseek(inherited, 0, SEEK_CUR) == 115);
        close(inherited);
    }
    stop = 1;
    for (int place = 0; place < THREADS; place++)
        pthread_join(threads[place], NULL);
}

/* A child that shares the parent's memory closes and moves descriptors, and fails to become another
 * program. */
static void vfork_and_fail(void)
{
    char path[4096], bytes[RECORD];
    char *arguments[] = {"nothing", NULL};
    make_file("vfork", 0, 2 * RECORD);
    int descriptor = open(in_folder(path, "vfork", 0), O_RDONLY | O_CLOEXEC);
    CHECK(read(descriptor, bytes, 10) == 10);
    for (int round = 0; round < 50; round++) {
        int status;
        pid_t child = vfork();
        if (child == 0) {
            dup2(0, descriptor);
            close(descriptor);
            execv("/no/such/program", arguments);
            _exit(3);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
        CHECK(read(descriptor, bytes, 10) == 10 && bytes[0] == 1);
    }
    CHECK(lseek(descriptor, 0, SEEK_CUR) == 510);
}

/* stdio by every way in; the text is 2000 numbered lines of 32 bytes. */
static void streams(void)
{
    char path[4096], text[64], *line = NULL;
    size_t room = 0;
    int number, descriptor;
    FILE *stream = fopen(in_folder(path, "lines", 0), "w");
    for (number = 0; number < 2000; number++)
        fprintf(stream, "%-31d\n", number);
    fclose(stream);
    stream = fopen(path, "r");
    for (int place = 0; place < 2000; place++)
        CHECK(fgets(text, sizeof text, stream) != NULL && atoi(text) == place &&
              strlen(text) == 32);
    CHECK(fgets(text, sizeof text, stream) == NULL && feof(stream));
    rewind(stream);
    for (int place = 0; place < 2000; place++)
        CHECK(getline(&line, &room, stream) == 32 && atoi(line) == place);
    CHECK(fseek(stream, 32 * 1000, SEEK_SET) == 0 && fscanf(stream, "%d", &number) == 1 &&
          number == 1000);
    CHECK(fseek(stream, 0, SEEK_SET) == 0);
    for (int place = 0; place < 64000; place++)
        CHECK(fgetc(stream) != EOF);
    CHECK(fgetc(stream) == EOF);
    CHECK(fclose(stream) == 0);
    descriptor = open(path, O_RDONLY);
    stream = fdopen(dup(descriptor), "r");
    char *whole = malloc(70000);
    CHECK(fread(whole, 1, 70000, stream) == 64000 && memcmp(whole + 32, "1 ", 2) == 0);
    CHECK(lseek(descriptor, 0, SEEK_CUR) == 64000);
    fclose(stream);
    close(descriptor);
    stream = popen("echo 5 6", "r");
    CHECK(fscanf(stream, "%d", &number) == 1 && number == 5 && pclose(stream) == 0);
    free(whole);
    free(line);
}

/* Every way to read bytes of a file by its descriptor: 12 reads of 1000 bytes. */
static void every_read(void)
{
    char path[4096], bytes[1000];
    make_file("every", 0, 20000);
    int descriptor = open(in_folder(path, "every", 0), O_RDONLY), other = open(path, O_RDONLY);
    int pipes[2], to = open(in_folder(path, "copy", 0), O_CREAT | O_RDWR, 0600);
    struct iovec parts[2] = {{bytes, 300}, {bytes + 300, 700}};
    off_t offset = 7000;
    CHECK(to >= 0 && pipe(pipes) == 0);
    CHECK(read(descriptor, bytes, 1000) == 1000);
    CHECK(pread(descriptor, bytes, 1000, 1000) == 1000);
    CHECK(readv(descriptor, parts, 2) == 1000);
    CHECK(preadv(descriptor, parts, 2, 3000) == 1000);
    CHECK(preadv2(descriptor, parts, 2, 4000, 0) == 1000);
    CHECK(preadv2(descriptor, parts, 2, -1, 0) == 1000);
    CHECK(copy_file_range(descriptor, NULL, to, NULL, 1000, 0) == 1000);
    CHECK(copy_file_range(descriptor, &offset, to, NULL, 1000, 0) == 1000 && offset == 8000);
    int third = dup(descriptor), fourth = fcntl(descriptor, F_DUPFD_CLOEXEC, 100);
    CHECK(dup2(descriptor, other) == other && third >= 0 && fourth >= 100);
    CHECK(read(other, bytes, 1000) == 1000);
    CHECK(read(third, bytes, 1000) == 1000);
    CHECK(read(fourth, bytes, 1000) == 1000);
    CHECK(pread(third, bytes, 1000, 19500) == 500 && pread(third, bytes, 1000, 19000) == 1000);
    CHECK(lseek(descriptor, 0, SEEK_CUR) == 7000);
}

/* io_uring_setup without the C library, as liburing does it; the ring is open when the program
 * ends, a second later. */
static void open_ring(void)
{
    long parameters[16] = {0}, result = 4;
#if defined(__x86_64__)
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(425L), "D"(result), "S"(parameters)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long first __asm__("x0") = result, number __asm__("x8") = 425;
    register void *second __asm__("x1") = parameters;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    result = first;
#else
    result = -1;
#endif
    puts(result >= 0 ? "open" : "refused");
    make_file("ring", 0, 10);
    read_file("ring", 0, 10);
    usleep(1100000);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"errno", keep_errno},     {"special", special_calls},   {"many", many_descriptors},
    {"storm", storm},          {"position", share_position}, {"fork", fork_while_reading},
    {"vfork", vfork_and_fail}, {"streams", streams},         {"every", every_read},
    {"ring", open_ring},
};

int main(int count, char **arguments)
{
    CHECK(count == 3);
    folder = arguments[2];
    for (size_t place = 0; place < sizeof parts / sizeof *parts; place++)
        if (strcmp(parts[place].name, arguments[1]) == 0) {
            parts[place].run();
            return 0;
        }
    return 2;
}

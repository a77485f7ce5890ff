/* Lanes side by side, and the tiles that hold a few steps of them.

A lane is one channel of one group, a group a stretch of one sequence: the whole sequence in a walk, an interval in a shooting pass. A tile holds
`capacity` steps of all lanes, each step `width` numbers, lane after lane. Rows of fewer lanes than a vector are packed without gaps (`narrow`),
so that what does not depend on the state runs over steps and lanes as one long vector; wider rows are filled up to whole vectors.

SLOTS, TILES, OPERANDS, TIMED, SHARED, VARIES and the passes are generated. A slot is an array that passes read or write, the operands first: `base`
is its first step, `stride` the distance of two. It lies in a tile (those from TILES on have one step only), or is the caller's own memory where that
has the form of one. VARIES tells which change along time, TIMED which operands do, SHARED which of those are one number for all channels of a step.
Where one group fills the vectors, that number serves all lanes (`uniform`), and its slot is the caller's memory. */

#define VECTOR ((long)(64 / sizeof(real)))

/* Where a tensor lies: address of its first number, and strides in numbers. */
typedef struct {
    int64_t address, row, time, channel;
} Place;

typedef struct {
    long row, begin, length;
} Group;

typedef struct {
    real *base[SLOTS];
    long stride[SLOTS];
} Bank;

typedef struct {
    const Place *operands;
    Group *groups;
    long count, channel, channels, lanes, width, capacity;
    int narrow, uniform;
    Bank bank;
    real *tiles[SLOTS], *memory;
} Frame;

static void still(const Bank *bank, long steps, long lanes);
static void early(const Bank *bank, long steps, long lanes);
static void early_uniform(const Bank *bank, long steps, long lanes);

static long smaller(long a, long b) { return a < b ? a : b; }

static real *number_at(const Place *place, long row, long time, long channel) {
    return (real *)(intptr_t)place->address + row * place->row + time * place->time + channel * place->channel;
}

/* A whole sequence: a row, or a packed one. */
static Group sequence_of(int64_t offsets, long length, long sequence) {
    const int64_t *bounds = (const int64_t *)(intptr_t)offsets;
    if (!bounds) return (Group){sequence, 0, length};
    return (Group){0, (long)bounds[sequence], (long)(bounds[sequence + 1] - bounds[sequence])};
}

/* Steps of a group, of `steps` from `first` on, that it has. */
static long valid(const Group *group, long first, long steps) {
    const long left = group->length - first;
    return left < 0 ? 0 : smaller(left, steps);
}

/* Copy `steps` steps from `first` on to a tile; what a group does not have repeats its last step, or is zero where `repeat` is not set. */
static void pack(const Frame *frame, real *tile, const Place *from, long first, long steps, int repeat) {
    const long width = frame->width, channels = frame->channels;
    for (long g = 0; g < frame->count; g++) {
        const Group *group = &frame->groups[g];
        const long count = valid(group, first, steps);
        const real *source = number_at(from, group->row, group->begin + first, frame->channel);
        real *target = tile + g * channels;
        if (channels == 1) {
            for (long s = 0; s < count; s++) target[s * width] = source[s * from->time];
        } else if (from->channel == 1) {
            for (long s = 0; s < count; s++)
                for (long c = 0; c < channels; c++) target[s * width + c] = source[s * from->time + c];
        } else {
            for (long s = 0; s < count; s++)
                for (long c = 0; c < channels; c++) target[s * width + c] = source[s * from->time + c * from->channel];
        }
        const real *last = repeat && count > 0 ? target + (count - 1) * width : NULL;
        for (long s = count; s < steps; s++)
            for (long c = 0; c < channels; c++) target[s * width + c] = last ? last[c] : (real)0;
    }
}

/* Copy the steps that groups have from a tile to where they belong. */
static void unpack(const Frame *frame, const real *tile, const Place *to, long first, long steps) {
    const long width = frame->width, channels = frame->channels;
    for (long g = 0; g < frame->count; g++) {
        const Group *group = &frame->groups[g];
        const long count = valid(group, first, steps);
        real *target = number_at(to, group->row, group->begin + first, frame->channel);
        const real *source = tile + g * channels;
        if (channels == 1) {
            for (long s = 0; s < count; s++) target[s * to->time] = source[s * width];
        } else {
            for (long s = 0; s < count; s++)
                for (long c = 0; c < channels; c++) target[s * to->time + c * to->channel] = source[s * width + c];
        }
    }
}

/* Whether a frame can read or write a tensor where it lies. */
static int is_direct(const Frame *frame, const Place *place) {
    return frame->count == 1 && frame->channels == frame->width && !frame->narrow && place->channel == 1;
}

static void use_tile(Frame *frame, long slot) {
    frame->bank.base[slot] = frame->tiles[slot];
    frame->bank.stride[slot] = frame->width;
}

/* Tiles for `count` groups of `channels` channels from `channel` on, and what depends on the channel alone. False without memory. */
static int open_frame(Frame *frame, const Place *operands, Group *groups, long count, long channel, long channels, long capacity) {
    frame->operands = operands;
    frame->groups = groups;
    frame->count = count;
    frame->channel = channel;
    frame->channels = channels;
    frame->lanes = count * channels;
    frame->narrow = frame->lanes < VECTOR;
    frame->uniform = count == 1 && !frame->narrow;
    frame->width = frame->narrow ? frame->lanes : (frame->lanes + VECTOR - 1) / VECTOR * VECTOR;
    frame->capacity = capacity;
    /* One step more than the capacity, for states before and after; each tile begins a line of the cache. */
    const long size = ((capacity + 1) * frame->width + VECTOR - 1) / VECTOR * VECTOR, row = (frame->width + VECTOR - 1) / VECTOR * VECTOR;
    const size_t numbers = (size_t)(size * TILES + row * (SLOTS - TILES) + VECTOR);
    frame->memory = malloc(numbers * sizeof(real));
    if (!frame->memory) return 0;
    /* What fills rows up to whole vectors is computed with as well. */
    if (frame->width != frame->lanes) memset(frame->memory, 0, numbers * sizeof(real));
    real *next = (real *)(((uintptr_t)frame->memory + 63) & ~(uintptr_t)63);
    for (long slot = 0; slot < SLOTS; slot++) {
        frame->tiles[slot] = next;
        next += slot < TILES ? size : row;
        use_tile(frame, slot);
    }
    for (long slot = 0; slot < OPERANDS; slot++) {
        if (TIMED[slot]) continue;
        for (long s = 0; s < (frame->narrow ? capacity : 1); s++)
            for (long g = 0; g < count; g++)
                for (long c = 0; c < channels; c++)
                    frame->tiles[slot][s * frame->width + g * channels + c] = *number_at(&operands[slot], 0, 0, channel + c);
    }
    still(&frame->bank, 1, frame->narrow ? capacity * frame->width : frame->width);
    if (!frame->narrow)
        for (long slot = 0; slot < SLOTS; slot++)
            if (!VARIES[slot]) frame->bank.stride[slot] = 0;
    return 1;
}

static void close_frame(Frame *frame) { free(frame->memory); }

/* Bring `steps` steps from `first` on into the slots, and compute what does not depend on the carry. */
static void load(Frame *frame, long first, long steps) {
    for (long slot = 0; slot < OPERANDS; slot++) {
        if (!TIMED[slot]) continue;
        const Place *place = &frame->operands[slot];
        if (SHARED[slot] ? frame->uniform : is_direct(frame, place)) {
            frame->bank.base[slot] = number_at(place, frame->groups[0].row, frame->groups[0].begin + first, frame->channel);
            frame->bank.stride[slot] = place->time;
        } else {
            pack(frame, frame->tiles[slot], place, first, steps, 1);
        }
    }
}

/* A pass over steps that do not depend on each other. */
#define ACROSS(pass, frame, steps)                                              \
    ((frame)->uniform  ? pass##_uniform(&(frame)->bank, (steps), (frame)->width) \
     : (frame)->narrow ? pass(&(frame)->bank, 1, (steps) * (frame)->width)      \
                       : pass(&(frame)->bank, (steps), (frame)->width))

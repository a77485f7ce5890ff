/* Multiple shooting in windows.

A window is as many intervals as there are lanes for. It starts from the exact state, so its intervals are all that Newton's method has to
settle; its tiles stay in the cache for all sweeps. */

/* An update below the root of its tolerance, times this, is taken to be in reach of one correction with the slopes at hand. */
#define REACH 4
/* A sweep that does not shrink the update so far is a strike; at the second in a row the window is walked. */
#define SHRINK 0.5
#define STRIKES 2
/* Rounding errors that may build up along a sequence, in tolerances, before the states are as good as any but no longer those of the loop. */
#define NOISE 4
/* Windows that may be walked before the rest of the sequence is. */
#define PATIENCE 2

/* The larger of two sizes; NaN is not larger. */
INLINE real larger_size(real size, real number) { return T(abs)(number) > size ? T(abs)(number) : size; }

static void advance(const Bank *bank, long steps, long lanes);

typedef struct {
    double ratio, settled, sweeps, noise;
    int near;
} Verdict;

/* Small numbers of a shooting pass: per lane entries, ends, slopes and growth; per channel the state at the window's start, and errors there. */
typedef struct {
    real *entry, *ends, *state, *wander, *drift, *memory;
} Shots;

static int is_finite(real x) { return T(abs)(x) < (real)INFINITY; }

/* Correct the entries of a window by the updates that make the intervals meet, and judge them by these. */
static Verdict correct(const Frame *frame, const Shots *shots, double absolute, double relative) {
    Verdict verdict = {0, 0, 0, 0, 1};
    const real *product = frame->tiles[PRODUCT], *growth = frame->tiles[GROWTH];
    const long channels = frame->channels;
    for (long c = 0; c < channels; c++) {
        real update = 0;
        for (long g = 1; g < frame->count; g++) {
            const long lane = g * channels + c, before = lane - channels;
            const real target = shots->ends[before], mismatch = target - shots->entry[lane];
            const int finite = is_finite(mismatch);
            const real residual = finite ? mismatch : 0;
            update = (is_finite(product[before]) ? product[before] : 0) * update + residual;
            /* Not the entry plus the update: where the entry before is right, this is the target to the bit. */
            const real corrected = target + (update - residual);
            const real fallback = finite ? target : shots->entry[lane];
            const double size = absolute + relative * (double)T(abs)(target), change = (double)T(abs)(update);
            const double ratio = finite & is_finite(update) ? change / size : (double)INFINITY;
            /* No update is no error, however an error would grow. */
            const double inside = ratio == 0 ? 0 : ratio * (double)growth[lane];
            verdict.ratio = ratio > verdict.ratio ? ratio : verdict.ratio;
            verdict.settled = inside > verdict.settled ? inside : verdict.settled;
            verdict.near &= ratio < (double)INFINITY && change <= REACH * __builtin_sqrt(size);
            shots->entry[lane] = is_finite(corrected) ? corrected : fallback;
        }
        /* What is left to correct at the end of the window is an error of the windows to come. */
        shots->drift[channels + c] = is_finite(update) ? T(abs)(update) : 0;
    }
    return verdict;
}

/* Carry errors through the window: those of rounding, sampled one an interval, and what corrections left. In tolerances, the largest that shows. */
static double carry_errors(const Frame *frame, const Shots *shots, long number, double absolute, double relative) {
    const real *product = frame->tiles[PRODUCT], *growth = frame->tiles[GROWTH];
    const long channels = frame->channels;
    double most = 0;
    for (long c = 0; c < channels; c++) {
        double wander = shots->wander[c], drift = shots->drift[c];
        for (long g = 0; g < frame->count; g++) {
            const long lane = g * channels + c;
            const double slope = is_finite(product[lane]) ? product[lane] : 0, end = T(abs)(shots->ends[lane]);
            const double magnitude = end < (double)INFINITY ? end : 0, grown = growth[lane];
            /* Spread over [-1, 1] without a pattern, and the same each time: fractional parts of multiples of the golden ratio. */
            const double share = (double)((number + g) * (channels + 61) + c) * 0.6180339887498949;
            const double made = (2 * (share - __builtin_floor(share)) - 1) * magnitude * EPSILON;
            const double shown = (__builtin_fabs(wander) + __builtin_fabs(made) + drift) * grown / (absolute + relative * magnitude);
            most = shown <= most ? most : shown;
            wander = slope * wander + made;
            drift = __builtin_fabs(slope) * drift;
        }
        shots->wander[c] = (real)wander;
        shots->drift[c] = (real)drift + shots->drift[channels + c];
    }
    return most;
}

/* From the entries through all intervals, with slopes and growth; the ends are left in `ends`. */
static void sweep(Frame *frame, const Shots *shots, long steps) {
    const size_t row = (size_t)frame->width * sizeof(real);
    memcpy(frame->tiles[CURRENT], shots->entry, row);
    for (long lane = 0; lane < frame->width; lane++) frame->tiles[PRODUCT][lane] = frame->tiles[GROWTH][lane] = 1;
    advance(&frame->bank, steps, frame->width);
    memcpy(shots->ends, frame->tiles[CURRENT], row);
}

/* From the entries through all intervals, keeping the states in the tile. */
static void write_states(Frame *frame, const Shots *shots, long steps) {
    const size_t row = (size_t)frame->width * sizeof(real);
    memcpy(frame->tiles[STATE], shots->entry, row);
    value(&frame->bank, steps, frame->width);
    memcpy(shots->ends, frame->tiles[STATE] + steps * frame->width, row);
}

/* Entries from one step each, from the state at the window's start, with the drive of the last step of the interval before. */
static void guess(Frame *frame, const Shots *shots, long steps) {
    const long channels = frame->channels;
    Bank last = frame->bank;
    for (long slot = 0; slot < SLOTS; slot++)
        if (VARIES[slot] && slot != STATE && slot != NEXT) last.base[slot] += (steps - 1) * last.stride[slot];
    for (long g = 0; g < frame->count; g++) memcpy(frame->tiles[STATE] + g * channels, shots->state, (size_t)channels * sizeof(real));
    value(&last, 1, frame->width);
    memcpy(shots->entry, shots->state, (size_t)channels * sizeof(real));
    memcpy(shots->entry + channels, frame->tiles[STATE] + frame->width, (size_t)((frame->count - 1) * channels) * sizeof(real));
}

/* Newton's method in a loaded window of several intervals; true when the states in the tile are those of the loop. */
static int settle(const Call *call, Frame *frame, const Shots *shots, long steps, double absolute, double relative, Verdict *verdict) {
    double best = (double)INFINITY, sweeps = 0;
    guess(frame, shots, steps);
    for (int strikes = 0;;) {
        sweep(frame, shots, steps);
        sweeps++;
        *verdict = correct(frame, shots, absolute, relative);
        verdict->sweeps = sweeps;
        strikes = verdict->ratio <= SHRINK * best ? 0 : strikes + 1;
        best = verdict->ratio < best ? verdict->ratio : best;
        if (verdict->near) {
            write_states(frame, shots, steps);
            *verdict = correct(frame, shots, absolute, relative);
            verdict->sweeps = sweeps;
            if (verdict->settled <= 1) return 1;
            /* A near window that missed goes on, with fresh slopes, as long as it gets nearer. */
            if (!verdict->near || verdict->ratio > SHRINK * best) return 0;
            best = verdict->ratio;
        } else if (strikes >= STRIKES) {
            return 0;
        }
        if (sweeps >= (double)call->sweeps) return 0;
    }
}

static int open_shots(Shots *shots, const Frame *frame) {
    const long width = frame->width, channels = frame->channels;
    shots->memory = calloc((size_t)(2 * width + 4 * channels), sizeof(real));
    shots->entry = shots->memory;
    shots->ends = shots->entry + width;
    shots->state = shots->ends + width;
    shots->wander = shots->state + channels;
    shots->drift = shots->wander + channels;
    return shots->memory != NULL;
}

/* The window of an open frame that begins at `at`; its states are in the tile and written, or it was walked. False without memory. */
static int window(const Call *call, Frame *frame, Shots *shots, Group whole, long at, double absolute, double relative, Verdict *verdict, int *walked) {
    const long interval = call->interval, left = whole.length - at, channels = frame->channels;
    frame->count = smaller(call->window, (left + interval - 1) / interval);
    for (long g = 0; g < frame->count; g++)
        frame->groups[g] = (Group){whole.row, whole.begin + at + g * interval, smaller(interval, left - g * interval)};
    const long steps = smaller(interval, left), covered = smaller(frame->count * interval, left), last = frame->groups[frame->count - 1].length;
    load(frame, 0, steps);
    ACROSS(early, frame, steps);
    if (settle(call, frame, shots, steps, absolute, relative, verdict)) {
        unpack(frame, frame->tiles[STATE] + frame->width, &call->states, 0, steps);
        const real *end = frame->tiles[STATE] + last * frame->width + (frame->count - 1) * channels;
        verdict->noise = carry_errors(frame, shots, at / interval, absolute, relative);
        memcpy(shots->state, end, (size_t)channels * sizeof(real));
        return 1;
    }
    *walked += 1;
    memcpy(shots->entry, shots->state, (size_t)channels * sizeof(real));
    if (!walk_stretch(call, (Group){whole.row, whole.begin + at, covered}, frame->channel, channels, shots->state)) return 0;
    /* The slopes along what was walked tell how errors go on. */
    for (long g = 1; g < frame->count; g++)
        for (long c = 0; c < channels; c++)
            shots->entry[g * channels + c] = *number_at(&call->states, whole.row, frame->groups[g].begin - 1, frame->channel + c);
    sweep(frame, shots, steps);
    memset(shots->drift + channels, 0, (size_t)channels * sizeof(real));
    verdict->noise = carry_errors(frame, shots, at / interval, absolute, relative);
    return 1;
}

/* Solve one sequence by windows; what does not settle is walked, all of it where rounding errors would show. */
static int shoot(const Call *call, long sequence, long channel, long channels, double absolute, double relative, float *record) {
    Group whole = sequence_of(call->offsets, call->length, sequence);
    if (whole.length == 0) return 1;
    Group *groups = calloc((size_t)call->window, sizeof(Group));
    Frame frame;
    Shots shots;
    if (!groups) return 0;
    if (!open_frame(&frame, call->operands, groups, call->window, channel, channels, call->interval)) {
        free(groups);
        return 0;
    }
    int fine = open_shots(&shots, &frame), walked = 0;
    frame.bank.base[NEXT] = frame.tiles[STATE] + frame.width;
    for (long slot = CURRENT; slot <= GROWTH; slot++) frame.bank.stride[slot] = 0;
    for (long c = 0; fine && c < channels; c++) shots.state[c] = *number_at(&call->initial, sequence, 0, channel + c);
    for (long at = 0; fine && at < whole.length; at += call->interval * call->window) {
        Verdict verdict = {0, 0, 0, 0, 0};
        if (walked >= PATIENCE) {
            fine = walk_stretch(call, (Group){whole.row, whole.begin + at, whole.length - at}, channel, channels, shots.state);
            break;
        }
        const int before = walked;
        fine = window(call, &frame, &shots, whole, at, absolute, relative, &verdict, &walked);
        record[0] = verdict.sweeps > record[0] ? (float)verdict.sweeps : record[0];
        if (walked == before) record[1] = verdict.ratio > record[1] ? (float)verdict.ratio : record[1];
        if (fine && !(verdict.noise <= NOISE)) {
            walked++;
            for (long c = 0; c < channels; c++) shots.state[c] = *number_at(&call->initial, sequence, 0, channel + c);
            fine = walk_stretch(call, whole, channel, channels, shots.state);
            break;
        }
    }
    record[2] = walked > 0;
    free(shots.memory);
    close_frame(&frame);
    free(groups);
    return fine;
}

/* Every `shares`-th task from `share` on. True when there was memory for it. */
int solve(const Call *call, double absolute, double relative, long share, long shares) {
    const long blocks = (long)((call->state + call->block - 1) / call->block);
    const long parts = (long)((call->sequences + call->together - 1) / call->together);
    int fine = 1;
    for (long task = share; fine && task < parts * blocks; task += shares) {
        const long sequence = task / blocks * call->together, block = task % blocks, channel = block * call->block;
        const long channels = smaller(call->block, call->state - channel);
        float *record = (float *)(intptr_t)call->record + (sequence * blocks + block) * 3;
        if (call->interval)
            fine = shoot(call, sequence, channel, channels, absolute, relative, record);
        else
            fine = walk(call, sequence, smaller(call->together, call->sequences - sequence), channel, channels);
    }
    return fine;
}

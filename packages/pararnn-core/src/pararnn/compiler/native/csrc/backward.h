/* Gradients, from the last step to the first.

In a tile, everything that does not need the costate comes first, all steps at once: the slopes among it. Then the costates, step by step; then
the gradients of the operands, all steps at once again. */

typedef struct {
    int64_t sequences, length, state, offsets, block, together, capacity;
    Place initial, states, grad, start;
    Place operands[OPERANDS];
    /* Of an element: where its gradient goes. Of a step: sums over the channels of a block, the block being the place's `channel`. Of a channel or
       scalar: sums over time in double precision, a row for each task of a block. */
    Place gradients[OPERANDS];
} Call;

static void late(const Bank *bank, long steps, long lanes);
static void late_uniform(const Bank *bank, long steps, long lanes);

/* Zero where a group has no step: what was computed there is meaningless, and may be NaN. */
static void clear(const Frame *frame, real *tile, long first, long steps) {
    for (long g = 0; g < frame->count; g++)
        for (long s = valid(&frame->groups[g], first, steps); s < steps; s++)
            for (long c = 0; c < frame->channels; c++) tile[s * frame->width + g * frame->channels + c] = 0;
}

/* The states before each step. */
static void load_before(const Call *call, Frame *frame, long sequence, long first, long steps) {
    real *tile = frame->tiles[STATE];
    Place before = call->states;
    before.address -= before.time * (int64_t)sizeof(real);
    if (first > 0 && is_direct(frame, &before)) {
        frame->bank.base[STATE] = number_at(&before, frame->groups[0].row, frame->groups[0].begin + first, frame->channel);
        frame->bank.stride[STATE] = before.time;
        return;
    }
    use_tile(frame, STATE);
    if (first > 0) {
        pack(frame, tile, &before, first, steps, 1);
        return;
    }
    /* The first row apart, so that nothing before the states is read. */
    for (long g = 0; g < frame->count; g++)
        for (long c = 0; c < frame->channels; c++)
            tile[g * frame->channels + c] = *number_at(&call->initial, sequence + g, 0, frame->channel + c);
    if (steps > 1) pack(frame, tile + frame->width, &before, 1, steps - 1, 1);
}

/* The costates of a tile, in place of the gradients of the states; `carry` goes to the step before. */
static void costates(const Frame *frame, long steps, real *carry) {
    const long width = frame->width;
    for (long s = steps - 1; s >= 0; s--) {
        real *costate = frame->tiles[COSTATE] + s * width;
        const real *slope = frame->tiles[SLOPE] + s * width;
#pragma omp simd
        for (long i = 0; i < width; i++) {
            const real sum = costate[i] + carry[i];
            costate[i] = sum;
            carry[i] = slope[i] * sum;
        }
    }
}

/* Sums over the channels of each step. */
static void sum_channels(const Frame *frame, long slot, const Place *to, long block, long first, long steps) {
    for (long g = 0; g < frame->count; g++) {
        const Group *group = &frame->groups[g];
        for (long s = 0; s < valid(group, first, steps); s++) {
            const real *row = frame->tiles[slot] + s * frame->width + g * frame->channels;
            real sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long c = 0; c < frame->channels; c++) sum += row[c];
            *number_at(to, group->row, group->begin + first + s, block) = sum;
        }
    }
}

/* Sums over the steps of a tile, added to those of the tiles before: so rounding errors do not build up along the sequence. */
static void sum_steps(const Frame *frame, long slot, long steps, real *partial, double *total) {
    const long width = frame->width;
    memset(partial, 0, (size_t)width * sizeof(real));
    for (long s = 0; s < steps; s++) {
        const real *row = frame->tiles[slot] + s * width;
#pragma omp simd
        for (long i = 0; i < width; i++) partial[i] += row[i];
    }
    for (long i = 0; i < width; i++) total[i] += (double)partial[i];
}

/* The gradients that are summed over steps. In a uniform frame the passes do that, tile by tile, and the sums lie in the first row of the tile. */
static int is_summed(long slot) { return NEEDED[slot] && !TIMED[slot]; }

static void begin_sums(Frame *frame) {
    for (long slot = 0; frame->uniform && slot < OPERANDS; slot++) {
        if (!is_summed(slot)) continue;
        memset(frame->tiles[GRADIENTS + slot], 0, (size_t)frame->width * sizeof(real));
        frame->bank.stride[GRADIENTS + slot] = 0;
    }
}

static void load_tile(const Call *call, Frame *frame, long sequence, long first, long steps, int ragged) {
    load(frame, first, steps);
    load_before(call, frame, sequence, first, steps);
    pack(frame, frame->tiles[COSTATE], &call->grad, first, steps, 0);
    for (long slot = 0; slot < OPERANDS; slot++) {
        const Place *place = &call->gradients[slot];
        if (!ELEMENT[slot] || !is_direct(frame, place)) continue;
        frame->bank.base[GRADIENTS + slot] = number_at(place, frame->groups[0].row, frame->groups[0].begin + first, frame->channel);
        frame->bank.stride[GRADIENTS + slot] = place->time;
    }
    begin_sums(frame);
    ACROSS(early, frame, steps);
    if (ragged) clear(frame, frame->tiles[SLOPE], first, steps);
}

static void give_tile(const Call *call, Frame *frame, long first, long steps, long block, int ragged, real *partial, double *totals) {
    for (long slot = 0; slot < OPERANDS; slot++) {
        const Place *place = &call->gradients[slot];
        real *tile = frame->tiles[GRADIENTS + slot];
        if (ELEMENT[slot]) {
            if (!is_direct(frame, place)) unpack(frame, tile, place, first, steps);
        } else if (NEEDED[slot] && TIMED[slot]) {
            sum_channels(frame, GRADIENTS + slot, place, block, first, steps);
        } else if (is_summed(slot) && frame->uniform) {
            for (long i = 0; i < frame->width; i++) totals[slot * frame->width + i] += (double)tile[i];
        } else if (is_summed(slot)) {
            if (ragged) clear(frame, tile, first, steps);
            sum_steps(frame, GRADIENTS + slot, steps, partial, totals + slot * frame->width);
        }
    }
}

/* Sequences from `sequence` on, side by side; `part` numbers the tasks of a block. */
static int walk_back(const Call *call, long sequence, long count, long block, long channel, long channels, long part) {
    Frame frame;
    Group *groups = malloc((size_t)count * sizeof(Group));
    if (!groups) return 0;
    long longest = 0;
    for (long g = 0; g < count; g++) {
        groups[g] = sequence_of(call->offsets, call->length, sequence + g);
        longest = groups[g].length > longest ? groups[g].length : longest;
    }
    const long capacity = smaller(call->capacity, longest > 0 ? longest : 1);
    if (!open_frame(&frame, call->operands, groups, count, channel, channels, capacity)) {
        free(groups);
        return 0;
    }
    double *totals = calloc((size_t)(frame.width * (OPERANDS + 2)), sizeof(double));
    if (totals) {
        real *carry = (real *)(totals + frame.width * OPERANDS), *partial = carry + frame.width;
        for (long first = (longest - 1) / capacity * capacity; longest > 0 && first >= 0; first -= capacity) {
            const long steps = smaller(capacity, longest - first);
            int ragged = 0;
            for (long g = 0; g < count; g++) ragged |= valid(&groups[g], first, steps) < steps;
            load_tile(call, &frame, sequence, first, steps, ragged);
            costates(&frame, steps, carry);
            ACROSS(late, &frame, steps);
            give_tile(call, &frame, first, steps, block, ragged, partial, totals);
        }
        for (long g = 0; g < count; g++)
            for (long c = 0; c < channels; c++) *number_at(&call->start, sequence + g, 0, channel + c) = carry[g * channels + c];
        for (long slot = 0; slot < OPERANDS; slot++) {
            if (!NEEDED[slot] || TIMED[slot]) continue;
            double *sums = (double *)(intptr_t)call->gradients[slot].address + part * call->state + channel;
            for (long c = 0; c < channels; c++) {
                sums[c] = 0;
                for (long g = 0; g < count; g++) sums[c] += totals[slot * frame.width + g * channels + c];
            }
        }
    }
    const int fine = totals != NULL;
    free(totals);
    close_frame(&frame);
    free(groups);
    return fine;
}

/* Every `shares`-th task from `share` on. True when there was memory for it. */
int backward(const Call *call, long share, long shares) {
    const long blocks = (long)((call->state + call->block - 1) / call->block);
    const long parts = (long)((call->sequences + call->together - 1) / call->together);
    int fine = 1;
    for (long task = share; fine && task < parts * blocks; task += shares) {
        const long part = task / blocks, sequence = part * call->together, block = task % blocks, channel = block * call->block;
        const long channels = smaller(call->block, call->state - channel), count = smaller(call->together, call->sequences - sequence);
        fine = walk_back(call, sequence, count, block, channel, channels, part);
    }
    return fine;
}

/* Sums of `parts` rows of `size` numbers, in their order. */
void add_rows(long parts, long size, const double *rows, double *sums) {
    for (long i = 0; i < size; i++) sums[i] = 0;
    for (long part = 0; part < parts; part++)
        for (long i = 0; i < size; i++) sums[i] += rows[part * size + i];
}

/* Sequences walked step by step, as many side by side as there are lanes for. */

typedef struct {
    int64_t sequences, length, state, offsets, block, together, capacity, interval, window, sweeps;
    Place initial, states;
    int64_t record;
    Place operands[OPERANDS];
} Call;

static void value(const Bank *bank, long steps, long lanes);
static void value_uniform(const Bank *bank, long steps, long lanes);

/* Steps of an open frame one after the other, from the states before them. */
static void walk_steps(const Frame *frame, const Bank *bank, long steps) {
    if (frame->uniform)
        value_uniform(bank, steps, frame->width);
    else
        value(bank, steps, frame->width);
}

/* Walk all groups of an open frame from the states in row 0 of the tile of states, writing them; the last ones are left in that row. */
static void walk_frame(const Call *call, Frame *frame, long longest) {
    real *tile = frame->tiles[STATE];
    frame->bank.base[NEXT] = tile + frame->width;
    for (long first = 0; first < longest; first += frame->capacity) {
        const long steps = smaller(frame->capacity, longest - first);
        load(frame, first, steps);
        ACROSS(early, frame, steps);
        walk_steps(frame, &frame->bank, steps);
        unpack(frame, tile + frame->width, &call->states, first, steps);
        memcpy(tile, tile + steps * frame->width, (size_t)frame->width * sizeof(real));
    }
}

/* The same where the states can be written where they belong; each step reads those of the one before there. */
static void walk_in_place(const Call *call, Frame *frame, long longest) {
    const Group *group = &frame->groups[0];
    const size_t row = (size_t)frame->width * sizeof(real);
    for (long first = 0; first < longest; first += frame->capacity) {
        const long steps = smaller(frame->capacity, longest - first);
        load(frame, first, steps);
        ACROSS(early, frame, steps);
        Bank bank = frame->bank;
        bank.base[NEXT] = number_at(&call->states, group->row, group->begin + first, frame->channel);
        bank.stride[NEXT] = bank.stride[STATE] = call->states.time;
        if (first == 0) {
            /* A step apart, because the states before it are in the tile. */
            walk_steps(frame, &bank, 1);
            for (long slot = 0; slot < SLOTS; slot++) bank.base[slot] += bank.stride[slot];
        }
        bank.base[STATE] = bank.base[NEXT] - call->states.time;
        walk_steps(frame, &bank, steps - (first == 0));
    }
    if (longest > 0) memcpy(frame->tiles[STATE], number_at(&call->states, group->row, group->begin + longest - 1, frame->channel), row);
}

static void walk_groups(const Call *call, Frame *frame, long longest) {
    if (is_direct(frame, &call->states))
        walk_in_place(call, frame, longest);
    else
        walk_frame(call, frame, longest);
}

/* Walk a stretch of one sequence from `state` `(channels,)`, which becomes the last one. */
static int walk_stretch(const Call *call, Group stretch, long channel, long channels, real *state) {
    Frame frame;
    if (!open_frame(&frame, call->operands, &stretch, 1, channel, channels, call->capacity)) return 0;
    memcpy(frame.tiles[STATE], state, (size_t)channels * sizeof(real));
    walk_groups(call, &frame, stretch.length);
    memcpy(state, frame.tiles[STATE], (size_t)channels * sizeof(real));
    close_frame(&frame);
    return 1;
}

/* Walk `count` sequences from `sequence` on side by side. */
static int walk(const Call *call, long sequence, long count, long channel, long channels) {
    Frame frame;
    Group *groups = malloc((size_t)count * sizeof(Group));
    if (!groups) return 0;
    long longest = 0;
    for (long g = 0; g < count; g++) {
        groups[g] = sequence_of(call->offsets, call->length, sequence + g);
        longest = groups[g].length > longest ? groups[g].length : longest;
    }
    if (!open_frame(&frame, call->operands, groups, count, channel, channels, smaller(call->capacity, longest))) {
        free(groups);
        return 0;
    }
    for (long g = 0; g < count; g++)
        for (long c = 0; c < channels; c++) frame.tiles[STATE][g * channels + c] = *number_at(&call->initial, sequence + g, 0, channel + c);
    walk_groups(call, &frame, longest);
    close_frame(&frame);
    free(groups);
    return 1;
}

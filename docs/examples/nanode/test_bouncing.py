"""Digits move as they should."""

import torch
from bouncing import bounce, videos


def test_points_are_thrown_back_by_both_walls():
    def walk(position, velocity, frames, room):
        for _ in range(frames):
            yield position
            if not 0 <= position + velocity <= room:
                velocity, position = -velocity, (2 * room if velocity > 0 else 0) - position
            position += velocity

    for start, velocity in ((0, 1), (3, 2), (5, -2), (6, 3)):
        found = bounce(torch.tensor(start), torch.tensor(velocity), 40, 6)
        assert found.tolist() == list(walk(start, velocity, 40, 6))


def test_a_video_shows_the_whole_digit_in_every_frame():
    sprites = torch.rand(5, 8, 8) + 0.1
    film = videos(sprites, 6, digits=1, frames=30, canvas=16)
    assert film.shape == (6, 30, 16, 16)
    totals = film.sum((-1, -2))
    torch.testing.assert_close(totals, totals[:, :1].expand_as(totals))


def test_a_digit_moves_one_or_two_pixels_along_both_axes():
    sprite = torch.zeros(1, 3, 3)
    sprite[0, 1, 1] = 1.0
    film = videos(sprite, 8, digits=1, frames=9, canvas=13)
    places = film.flatten(2).argmax(-1)
    for coordinate in (places // 13, places % 13):
        moved = coordinate.diff(dim=1).abs()
        inside = (coordinate[:, :-1] > 2) & (coordinate[:, :-1] < 10)
        assert set(moved[inside].tolist()) <= {1, 2}


def test_the_same_seed_gives_the_same_videos():
    sprites = torch.rand(5, 8, 8)
    assert torch.equal(videos(sprites, 3, seed=4), videos(sprites, 3, seed=4))
    assert not torch.equal(videos(sprites, 3, seed=4), videos(sprites, 3, seed=5))

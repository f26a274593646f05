from asyncrl.trainer.checkpoints.parts import Part, divide, stem_of


def test_files_are_numbered_as_hugging_face_numbers_them() -> None:
    assert Part().file("model") == "model.safetensors"
    assert Part(1, 3).file("model") == "model-00002-of-00003.safetensors"


def test_the_stem_of_a_file_is_that_it_was_named_by() -> None:
    assert {stem_of(part.file("critic_optimizer")) for part in (Part(), Part(0, 2), Part(11, 12))} == {
        "critic_optimizer"
    }


def test_parts_are_contiguous_and_about_equal() -> None:
    sizes = {str(number): 10 + number for number in range(20)}
    parts = divide(sizes, 4)
    assert list(parts.values()) == sorted(parts.values())
    loads = [sum(sizes[name] for name, part in parts.items() if part == index) for index in range(4)]
    assert max(loads) - min(loads) <= max(sizes.values())


def test_all_is_one_part_of_one_rank_and_nothing_divides_into_nothing() -> None:
    assert divide({"a": 1, "b": 0}, 1) == {"a": 0, "b": 0}
    assert divide({}, 3) == {}
    assert divide({"a": 0}, 3) == {"a": 0}

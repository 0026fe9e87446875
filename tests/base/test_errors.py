import pytest

from silofl.base.errors import DataError, Faults, quote_markdown, suggest_nearest


@pytest.mark.parametrize("name", ["organ", "left ventricle", "disc_cup", "T1/T2", "Größe", "R+", "non-tumour"])
def test_a_name_of_words_is_plain_in_markdown(name):
    assert quote_markdown(name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[agreed](https://example.org)", "`[agreed](https://example.org)`"),
        ('<img src="x">', '`<img src="x">`'),
        ("www.example.org", "`www.example.org`"),
        ("a | b", "`a / b`"),
        ("`<b>`", "`'<b>'`"),
        ("a\n\n# b", "`a  # b`"),
    ],
)
def test_a_name_with_signs_of_markdown_is_code(name, shown):
    assert quote_markdown(name) == shown


def test_a_name_is_not_its_own_correction():
    assert suggest_nearest("organ", ["organs", "bones"]) == " (did you mean 'organs'?)"
    assert suggest_nearest(".", [".", "_"]) == "" and suggest_nearest("organs", ["organs"]) == ""


def test_many_faults_of_one_cause_are_one_sentence_with_their_number():
    faults = Faults()
    for number in range(29):
        with faults.collect_fault():
            raise DataError(f"case {number} has no mask; put it there")
    first = "case 0 has no mask; put it there (and 28 more of this kind)"
    with pytest.raises(DataError) as error:
        faults.tell()
    assert str(error.value) == f"29 faults: {first}"
    with faults.collect_fault():
        raise DataError("case 7 has no image")
    assert faults.describe() == f"30 faults: (1) {first}. (2) case 7 has no image"

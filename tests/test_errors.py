import pytest

from silofl.errors import literal, nearest


@pytest.mark.parametrize("name", ["organ", "left ventricle", "disc_cup", "T1/T2", "Größe", "R+", "non-tumour"])
def test_a_name_of_words_is_shown_in_markdown_as_it_is(name):
    assert literal(name) == name


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
def test_a_name_with_signs_of_markdown_is_code_on_one_line(name, shown):
    assert literal(name) == shown


def test_a_name_is_not_its_own_correction():
    assert nearest("organ", ["organs", "bones"]) == " (did you mean 'organs'?)"
    assert nearest(".", [".", "_"]) == "" and nearest("organs", ["organs"]) == ""

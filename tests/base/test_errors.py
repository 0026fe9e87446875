import pytest

from silofl.base.errors import quote_markdown, suggest_nearest


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

import pytest

from silofl.parts.checked_cast import checked_cast
from silofl.parts.task import Exchange, Message


def test_a_value_is_taken_for_its_own_class_alone():
    message = Message()
    assert checked_cast(message, Message) is message
    with pytest.raises(TypeError, match="an? Exchange .* not a Message"):
        checked_cast(message, Exchange)
    with pytest.raises(TypeError, match="not a NoneType"):
        checked_cast(None, Message)

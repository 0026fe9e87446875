import pytest

from silofl.parts.narrow import narrow
from silofl.parts.task import Exchange, Message


def test_a_value_is_taken_for_its_own_class_alone():
    message = Message()
    assert narrow(message, Message) is message
    with pytest.raises(TypeError, match="an? Exchange .* not a Message"):
        narrow(message, Exchange)
    with pytest.raises(TypeError, match="not a NoneType"):
        narrow(None, Message)

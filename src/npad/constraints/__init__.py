"""What outputs must satisfy: prefixes, closed sets, phrases, grammars."""

from npad.constraints.constrained import Constrained as Constrained
from npad.constraints.constrained import Forbidden as Forbidden
from npad.constraints.constrained import Rule as Rule
from npad.constraints.kinds import Choices as Choices
from npad.constraints.kinds import Constraint as Constraint
from npad.constraints.kinds import Prefix as Prefix

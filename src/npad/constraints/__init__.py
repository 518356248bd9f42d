"""What outputs must satisfy: prefixes, closed sets, phrases, grammars."""

from npad.constraints.automata import Automaton as Automaton
from npad.constraints.constrained import Constrained as Constrained
from npad.constraints.constrained import Forbidden as Forbidden
from npad.constraints.constrained import Rule as Rule
from npad.constraints.kinds import Choices as Choices
from npad.constraints.kinds import Constraint as Constraint
from npad.constraints.kinds import Grammar as Grammar
from npad.constraints.kinds import Prefix as Prefix
from npad.constraints.kinds import Terms as Terms
from npad.constraints.kinds import With as With
from npad.constraints.kinds import Without as Without
from npad.constraints.phrases import Required as Required

"""The two resources of group evenkeel.dev, v1alpha1 (design §3). The CRDs are generated from these dataclasses.

The docstring under a field is its description in the CRD; the generator appends the default. `decode` reads the
dataclasses, `validate` adds the rules across fields. Enums list only what the runtime implements.
"""

from evenkeel_contract.routerconfig import StateStore as StateStore
from evenkeel_contract.spec.common import Metadata as Metadata
from evenkeel_contract.spec.common import PodTemplate as PodTemplate
from evenkeel_contract.spec.common import SecretKeyRef as SecretKeyRef
from evenkeel_contract.spec.engine import AccessMode as AccessMode
from evenkeel_contract.spec.engine import Engine as Engine
from evenkeel_contract.spec.engine import Model as Model
from evenkeel_contract.spec.engine import ReplicaPolicyName as ReplicaPolicyName
from evenkeel_contract.spec.engine import Runtime as Runtime
from evenkeel_contract.spec.router import Router as Router
from evenkeel_contract.spec.scaling import Autoscaling as Autoscaling
from evenkeel_contract.spec.scaling import SelectPolicy as SelectPolicy
from evenkeel_contract.spec.scaling import Slo as Slo
from evenkeel_contract.spec.service import FairInferenceService as FairInferenceService
from evenkeel_contract.spec.service import Rejoin as Rejoin
from evenkeel_contract.spec.service import Scheduling as Scheduling
from evenkeel_contract.spec.service import ServiceSpec as ServiceSpec
from evenkeel_contract.spec.status import Condition as Condition
from evenkeel_contract.spec.status import ConditionStatus as ConditionStatus
from evenkeel_contract.spec.status import ServiceCondition as ServiceCondition
from evenkeel_contract.spec.status import ServiceStatus as ServiceStatus
from evenkeel_contract.spec.status import TenantCondition as TenantCondition
from evenkeel_contract.spec.status import TenantStatus as TenantStatus
from evenkeel_contract.spec.tenant import InferenceTenant as InferenceTenant
from evenkeel_contract.spec.tenant import TenantSpec as TenantSpec

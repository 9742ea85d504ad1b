-- Health of a FairInferenceService, a FairInferenceGateway or an InferenceTenant for Argo CD (docs/how-to/gitops.md).
local function conditions(status)
  local found = {}
  for _, one in ipairs(status.conditions or {}) do
    found[one.type] = one
  end
  return found
end

local function health(status, message)
  return { status = status, message = message }
end

local status = obj.status or {}
if status.observedGeneration == nil or status.observedGeneration < (obj.metadata.generation or 0) then
  return health("Progressing", "The operator has not seen the newest spec yet.")
end
local found = conditions(status)
local function is(kind, value)
  return found[kind] ~= nil and found[kind].status == value
end
if is("Stalled", "True") then
  return health("Degraded", found.Stalled.message)
end
if is("Reconciling", "True") then
  return health("Progressing", found.Reconciling.message)
end
if is("Ready", "False") and found.Ready.reason == "NoReplicas" then
  return health("Suspended", found.Ready.message)
end
if is("Degraded", "True") then
  return health("Degraded", found.Degraded.message)
end
if is("Ready", "True") then
  return health("Healthy", found.Ready.message)
end
return health("Progressing", found.Ready and found.Ready.message or "Waiting for the operator.")

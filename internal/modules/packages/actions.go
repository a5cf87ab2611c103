package packages

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/packages"
	"gatehouse/tool"
)

func (k *manager) actionTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "package_action_get_input", Title: "Describe a package's action", Effects: tool.Reads,
			Task: tool.TaskNever, Aliases: []string{"package.action.get-input"},
			Description: "Describes an action of a package: its warning, its input, and why it cannot be run now.",
			Help:        "gatehouse:///public/packageData and package_info list the actions.",
		}, k.actionInput),
		tool.New(tool.Def{
			Name: "package_action_run", Title: "Run a package's action",
			Effects: tool.Writes | tool.Destroys | tool.OpenWorld, Task: tool.TaskNever, Sync: true,
			Aliases:     []string{"package.action.run"},
			Description: "Runs an action of a package. If it has a warning, the user is asked first.",
			Help: "Its input is checked against the schema of package_action_get_input. An action that was a task is done " +
				"when it has succeeded. " + confirmHelp,
		}, k.runAction),
		tool.New(tool.Def{
			Name: "package_action_clear_task", Title: "Clear a package's task", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"package.action.clear-task"},
			Description: "Removes a task of a package, as if it were done. One that is critical needs force.",
			Help:        "Tasks are what a package still needs: a secret, a login or an action.",
		}, k.clearTask),
		tool.New(tool.Def{
			Name: "package_host_list", Title: "List where a package is reached", Effects: tool.Reads,
			Task: tool.TaskNever, Aliases: []string{"package.host.list"},
			Description: "Lists the addresses at which clients reach the tools of a package, " +
				"with their names and TLS, " +
				"and the ports that its servers listen on.",
		}, k.hostList),
		tool.New(tool.Def{
			Name: "package_set_outbound_gateway", Title: "Choose a package's network interface",
			Effects: tool.Writes | tool.Idempotent, Task: tool.TaskNever, Sync: true,
			Aliases: []string{"package.set-outbound-gateway"},
			Description: "Has the connections of a package to the network use one interface of this machine, or again " +
				"that of the system.",
			Help: "If the interface is gone, its connections fail; no other is used. net_interfaces lists the " +
				"interfaces. " +
				"Names are resolved as before. Its servers are started again.",
		}, k.setOutbound),
		tool.New(tool.Def{
			Name: "package_cancel_install", Title: "Cancel an installation", Effects: tool.Writes | tool.Idempotent,
			Task: tool.TaskNever, Sync: true, Aliases: []string{"package.cancel-install"},
			Description: "Cancels the installation or update of a package, if one runs. The package is then as before.",
			Help:        "job_cancel does the same by the job.",
		}, k.cancelInstall),
	}
}

type actionIn struct {
	ID      string          `json:"id" min:"1" max:"32"`
	Action  string          `json:"action" doc:"id of the action" min:"1" max:"64"`
	Prefill json.RawMessage `json:"prefill,omitempty" doc:"input to check, and to complete with defaults"`
}

type actionOut struct {
	Action      string          `json:"action"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Warning     string          `json:"warning,omitempty" doc:"the user is asked before it runs"`
	Allowed     string          `json:"allowed_statuses" doc:"of the server: any, only-running or only-stopped"`
	Disabled    string          `json:"disabled,omitempty" doc:"why it cannot be run now"`
	Spec        json.RawMessage `json:"spec,omitempty" doc:"JSON Schema of its input; missing if it has none"`
	Value       json.RawMessage `json:"value,omitempty" doc:"prefill, with the defaults of the schema"`
}

func (k *manager) actionInput(_ context.Context, c *tool.Call, in actionIn) (actionOut, error) {
	if err := k.checkOperator(c); err != nil {
		return actionOut{}, err
	}
	a, disabled, err := k.cfg.Packages.FindAction(in.ID, in.Action)
	if err != nil {
		return actionOut{}, err
	}
	out := actionOut{
		Action: a.ID, Name: a.Name, Description: a.Description, Warning: a.Warning, Allowed: a.Allowed,
		Disabled: disabled, Spec: a.Input,
	}
	if out.Allowed == "" {
		out.Allowed = packages.AnyStatus
	}
	if len(in.Prefill) > 0 {
		out.Value, err = a.CheckInput(in.Prefill)
	}
	return out, err
}

type runActionIn struct {
	ID      string          `json:"id" min:"1" max:"32"`
	Action  string          `json:"action" doc:"id of the action" min:"1" max:"64"`
	Input   json.RawMessage `json:"input,omitempty" doc:"as package_action_get_input describes it"`
	Confirm string          `json:"confirm,omitempty" doc:"the id, once the user has agreed; needs the setting approvals.callers_word" max:"32"`
}

type runActionOut struct {
	Version string        `json:"version" doc:"of this form: 1"`
	Title   string        `json:"title"`
	Message string        `json:"message,omitempty"`
	Result  *actionValue  `json:"result,omitempty"`
	Tasks   []packageTask `json:"tasks" doc:"what the package still needs"`
}

type actionValue struct {
	Type     string `json:"type" doc:"single"`
	Value    string `json:"value"`
	Copyable bool   `json:"copyable"`
	QR       bool   `json:"qr"`
	Masked   bool   `json:"masked"`
}

// packageTask is a task as it is shown.
type packageTask = packages.PackageTask

func (k *manager) runAction(ctx context.Context, c *tool.Call, in runActionIn) (runActionOut, error) {
	var out runActionOut
	if err := k.checkOperator(c); err != nil {
		return out, err
	}
	a, disabled, err := k.cfg.Packages.FindAction(in.ID, in.Action)
	if err == nil && disabled != "" {
		err = tool.Refuse(tool.CodeUnavailable, "action %s of package %s: %s; nothing was run", in.Action, in.ID,
			disabled)
	}
	if err != nil {
		return out, err
	}
	input, err := a.CheckInput(in.Input)
	if err != nil {
		return out, err
	}
	if a.Warning != "" {
		question := fmt.Sprintf("Run the action %s of the package %s? %s", a.Name, in.ID, a.Warning)
		if err := confirm.Ask(c, in.ID, question, in.Confirm); err != nil {
			return out, err
		}
	}
	r, err := k.cfg.Packages.RunAction(ctx, in.ID, a, input)
	if err != nil {
		return out, err
	}
	k.publish("action_run", in.ID, c)
	if r.Failed {
		return out, &tool.Refusal{Code: tool.CodeFailed,
			Message: fmt.Sprintf("the action %s of package %s failed: %s", a.ID, in.ID, r.Text),
			Next:    "package_logs has what its server has written."}
	}
	out = runActionOut{Version: "1", Title: a.Name, Tasks: []packageTask{}}
	if r.Text != "" {
		out.Result = &actionValue{Type: "single", Value: r.Text, Copyable: true}
	}
	i, err := k.cfg.Packages.Info(in.ID)
	out.Tasks = append(out.Tasks, i.Public.Tasks...)
	return out, err
}

type clearTaskIn struct {
	ID    string `json:"id" min:"1" max:"32"`
	Task  string `json:"task" doc:"id of the task" min:"1" max:"300"`
	Force bool   `json:"force,omitempty" doc:"also if it is critical"`
}

type clearTaskOut struct {
	Tasks []packageTask `json:"tasks" doc:"what the package still needs"`
}

func (k *manager) clearTask(_ context.Context, c *tool.Call, in clearTaskIn) (clearTaskOut, error) {
	if err := k.checkOperator(c); err != nil {
		return clearTaskOut{}, err
	}
	if err := k.cfg.Packages.ClearTask(in.ID, in.Task, in.Force); err != nil {
		return clearTaskOut{}, err
	}
	k.publish("task_cleared", in.ID, c)
	i, err := k.cfg.Packages.Info(in.ID)
	return clearTaskOut{append([]packageTask{}, i.Public.Tasks...)}, err
}

// Host is an address at which clients reach this host.
type Host struct {
	Kind    string   `json:"kind" doc:"HTTP, TCP or Unix"`
	Address string   `json:"address"`
	Names   []string `json:"names,omitempty" doc:"names of its certificate, or that it answers to"`
	TLS     bool     `json:"tls"`
}

type hostListOut struct {
	Hosts []Host    `json:"hosts" doc:"addresses at which clients reach its tools"`
	Ports []portOut `json:"ports" doc:"TCP ports that its servers listen on, on this machine"`
}

type portOut struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
}

func (k *manager) hostList(_ context.Context, c *tool.Call, in idIn) (hostListOut, error) {
	if err := k.checkOperator(c); err != nil {
		return hostListOut{}, err
	}
	ports, err := k.cfg.Packages.Ports(in.ID)
	if err != nil {
		return hostListOut{}, err
	}
	out := hostListOut{Hosts: []Host{}, Ports: []portOut{}}
	for _, port := range ports {
		out.Ports = append(out.Ports, portOut{port, "127.0.0.1:" + strconv.Itoa(port)})
	}
	if k.cfg.Hosts != nil {
		out.Hosts = append(out.Hosts, k.cfg.Hosts()...)
	}
	return out, nil
}

type outboundIn struct {
	ID      string `json:"id" min:"1" max:"32"`
	Gateway string `json:"gateway,omitempty" doc:"name of an interface; left out, that of the system" max:"100"`
}

func (k *manager) setOutbound(_ context.Context, c *tool.Call, in outboundIn) (entryOut, error) {
	if err := k.checkOperator(c); err != nil {
		return entryOut{}, err
	}
	if err := k.cfg.Packages.SetOutbound(in.ID, in.Gateway); err != nil {
		return entryOut{}, err
	}
	k.publish("outbound_set", in.ID, c)
	i, err := k.cfg.Packages.Info(in.ID)
	return entry(i), err
}

type cancelledOut struct {
	Cancelled bool `json:"cancelled" doc:"an installation was running"`
}

func (k *manager) cancelInstall(_ context.Context, c *tool.Call, in idIn) (cancelledOut, error) {
	if err := k.checkOperator(c); err != nil {
		return cancelledOut{}, err
	}
	return cancelledOut{k.cfg.Packages.CancelInstall(in.ID)}, nil
}

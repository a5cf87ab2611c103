// Package administration is the modules with which administrators manage users, tokens, secrets, approvals, the
// ledger and the settings of a host.
//
// Only the administration context has them. Each operation is a method of a small type, which the commands of the
// same name call as well, so that a tool and its command do the same.
package administration

import (
	"context"
	"errors"

	"gatehouse/internal/access/alert"
	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/stage"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the modules are given. A part that is nil belongs to no host: the tools that need it refuse.
type Config struct {
	// decides who administers the host; nil means no caller
	Rules     operator.Func                            `json:"-"`
	Users     *identity.Service                        `json:"-"`
	Secrets   *secret.Store                            `json:"-"`
	Approvals *approvals.Store                         `json:"-"`
	Alerts    *alert.Sender                            `json:"-"`
	Ledger    *audit.Ledger                            `json:"-"`
	Tasks     *stage.Manager                           `json:"-"`
	Settings  Settings                                 `json:"-"`
	Doctor    func(context.Context) ([]Finding, error) `json:"-"`
	// CheckContext returns an error if no token can be bound to a context of that name; nil accepts every name.
	CheckContext func(name string) error `json:"-"`
	// Changed records a change of the secrets in the ledger; nil records none.
	Changed func(subject, name, by string) `json:"-"`
}

// Module is one of the modules, with its name.
type Module struct {
	Name string
	New  module.New
}

// Names are the names of the modules, in the order of Modules.
var Names = []string{"user", "token", "secret", "approval", "alert", "review", "audit", "config", "doctor"}

// Modules returns the modules with a configuration.
func Modules(c Config) []Module {
	all := make([]Module, 0, len(Names))
	for i, make := range []func(Config) []tool.Tool{
		userTools, tokenTools, secretTools, approvalTools, alertTools, reviewTools, auditTools, configTools, doctorTools,
	} {
		all = append(all, Module{Names[i], offering(make(c))})
	}
	return all
}

// offering returns what makes a module that offers tools.
func offering(tools []tool.Tool) module.New {
	return func(context.Context, module.Deps) (module.Module, error) {
		return &offered{module.Offer{Tools: tools}}, nil
	}
}

type offered struct{ offer module.Offer }

// Offer implements module.Module.
func (o *offered) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &o.offer, nil
}

// Close implements module.Module. What the module administers belongs to the host.
func (o *offered) Close(context.Context) error { return nil }

// operation returns a tool for administrators. what completes the sentence "only administrators of this host may".
func operation[I, O any](
	c Config, what string, d tool.Def, run func(context.Context, *tool.Call, I) (O, error),
) tool.Tool {
	d.Task = tool.TaskNever
	return tool.New(d, func(ctx context.Context, call *tool.Call, in I) (O, error) {
		var none O
		if err := c.Rules.Check(call, what); err != nil {
			return none, err
		}
		out, err := run(ctx, call, in)
		return out, refusalOf(err)
	})
}

// errAbsent is the error of an operation whose part the host does not have.
var errAbsent = &tool.Refusal{
	Code: tool.CodeUnsupported, Message: "this host stores nothing of that kind",
	Next: "Use a host with a data folder.",
}

// Invalid is the error of an argument that an operation does not accept.
type Invalid struct{ Err error }

func (i *Invalid) Error() string { return i.Err.Error() }
func (i *Invalid) Unwrap() error { return i.Err }

// refusalOf turns the errors of what is administered into refusals.
func refusalOf(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r
	}
	code := tool.Code("")
	switch _, invalid := errors.AsType[*Invalid](err); {
	case errors.Is(err, identity.ErrNoUser), errors.Is(err, identity.ErrNone), errors.Is(err, identity.ErrNoHeir),
		errors.Is(err, secret.ErrNotFound), errors.Is(err, alert.ErrNotFound), errors.Is(err, approvals.ErrNotFound), errors.Is(err, stage.ErrNotFound):
		code = tool.CodeNotFound
	case errors.Is(err, identity.ErrTaken):
		code = tool.CodeExists
	case errors.Is(err, approvals.ErrDecided):
		code = tool.CodeStale
	case errors.Is(err, approvals.ErrPassphrase),
		errors.Is(err, approvals.ErrPasskey),
		errors.Is(err, approvals.ErrUnproven):
		code = tool.CodeDenied
	case invalid, errors.Is(err, alert.ErrInvalid):
		code = tool.CodeInvalidArguments
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		code = tool.CodeFailed
	}
	return &tool.Refusal{Code: code, Message: err.Error()}
}

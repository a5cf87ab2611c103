package administration

import (
	"context"
	"fmt"

	"gatehouse/internal/access/confirm"
	"gatehouse/internal/access/secret"
	"gatehouse/tool"
)

// Secrets administers the named secrets of a host. No operation returns a value. It is safe for concurrent use.
type Secrets struct{ Store *secret.Store }

// SecretList is the secrets without their values.
type SecretList struct {
	Secrets []secret.Entry `json:"secrets" doc:"by name"`
}

// List lists the secrets.
func (s Secrets) List() (out SecretList, err error) {
	if s.Store == nil {
		return out, errAbsent
	}
	out.Secrets, err = s.Store.List()
	return out, err
}

// Set stores a value under a name, and replaces an earlier one.
func (s Secrets) Set(name string, value secret.Text) error {
	if s.Store == nil {
		return errAbsent
	}
	if err := secret.CheckName(name); err != nil {
		return &Invalid{err}
	}
	if n := len(value.Reveal()); n == 0 || n > secret.MaxValue {
		return &Invalid{fmt.Errorf("value has %d bytes; expected 1 to %d", n, secret.MaxValue)}
	}
	return s.Store.Set(name, value)
}

// Remove removes a secret.
func (s Secrets) Remove(name string) error {
	if s.Store == nil {
		return errAbsent
	}
	return s.Store.Remove(name)
}

type secretIn struct {
	Name  string `json:"name" doc:"letters, digits and _ - . inside, at most 64" min:"1" max:"64"`
	Value string `json:"value" doc:"the secret; no tool returns it" format:"password" min:"1"`
}

type secretNameIn struct {
	Name    string `json:"name" doc:"the secret" min:"1" max:"64"`
	Confirm string `json:"confirm,omitempty" doc:"the name again, if the client cannot ask its user and the host accepts that"`
}

type stored struct {
	Stored string `json:"stored"`
}

func secretTools(c Config) []tool.Tool {
	s := Secrets{c.Secrets}
	note := func(call *tool.Call, subject, name string) {
		if c.Changed != nil {
			c.Changed(subject, name, call.Caller.Principal)
		}
	}
	return []tool.Tool{
		operation(c, "see the names of secrets", tool.Def{
			Name: "secret_list", Title: "List secrets", Effects: tool.Reads,
			Description: "Lists the secrets of this host by name, without their values.",
		}, func(context.Context, *tool.Call, struct{}) (SecretList, error) { return s.List() }),
		operation(c, "store secrets", tool.Def{
			Name: "secret_set", Title: "Store a secret", Effects: tool.Writes | tool.Destroys | tool.Idempotent,
			Description: "Stores a value under a name for programs that run in contexts. No tool returns it.",
			Help:        "A context refers to it as ${secret:NAME} in its env. An earlier value of that name is replaced.",
		}, func(_ context.Context, call *tool.Call, in secretIn) (stored, error) {
			err := s.Set(in.Name, secret.New(in.Value))
			if err == nil {
				note(call, "secret.set", in.Name)
			}
			return stored{in.Name}, err
		}),
		operation(c, "remove secrets", tool.Def{
			Name: "secret_remove", Title: "Remove a secret", Effects: tool.Writes | tool.Destroys,
			Description: "Removes a secret. Programs that are started later no longer get it.",
		}, func(_ context.Context, call *tool.Call, in secretNameIn) (removed, error) {
			question := fmt.Sprintf("Remove the secret %.64q? Its value cannot be recovered.", in.Name)
			if err := confirm.Ask(call, in.Name, question, in.Confirm); err != nil {
				return removed{}, err
			}
			err := s.Remove(in.Name)
			if err == nil {
				note(call, "secret.removed", in.Name)
			}
			return removed{in.Name}, err
		}),
	}
}

package contextstore

import (
	"errors"
	"maps"
	"slices"

	"gatehouse/internal/access/secret"
)

// Environment holds the variables of the programs that run in a context, besides those that every program needs.
type Environment struct {
	Plain  map[string]string
	Secret map[string]secret.Text // the variables whose values refer to secrets, filled in
}

// Fill replaces references to secrets in settings; see secret.Store.
type Fill func(settings map[string]string) (map[string]secret.Text, error)

// Environment returns the context's environment. If fill is nil, it refuses a context that refers to secrets.
func (r *Record) Environment(fill Fill) (e Environment, err error) {
	hidden := map[string]string{}
	e.Plain = map[string]string{}
	for name, value := range r.Env {
		if refers, err := secret.Names(value); err != nil || len(refers) > 0 {
			hidden[name] = value
		} else {
			e.Plain[name] = value
		}
	}
	if len(hidden) == 0 {
		return e, nil
	}
	if fill == nil {
		return e, errors.New("this host stores no secrets")
	}
	e.Secret, err = fill(hidden)
	return e, err
}

// Find returns the value of a variable.
func (e *Environment) Find(name string) (string, bool) {
	if t, ok := e.Secret[name]; ok {
		return t.Reveal(), true
	}
	s, ok := e.Plain[name]
	return s, ok
}

// Strings returns the variables in the form that a program receives, in order.
func (e *Environment) Strings() (env []string) {
	for _, name := range slices.Sorted(maps.Keys(e.Plain)) {
		env = append(env, name+"="+e.Plain[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.Secret)) {
		env = append(env, name+"="+e.Secret[name].Reveal())
	}
	return env
}

// Hider returns what removes the secrets from the output of a program or a server.
func (e *Environment) Hider() secret.Hider {
	return secret.NewHider(slices.Collect(maps.Values(e.Secret))...)
}

// Mask removes the secrets from the output of a program or a server.
func (e *Environment) Mask(said []byte) []byte {
	h := e.Hider()
	return h.Hide(said)
}

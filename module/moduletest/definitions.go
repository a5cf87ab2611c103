package moduletest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"testing"

	"gatehouse/module"
	"gatehouse/tool"
)

// definitionsAreSound: everything that is offered can be listed and called.
func (g *instance) definitionsAreSound(t *testing.T) {
	for _, to := range audiences {
		for _, err := range faults(g.offer(t, to), g.o.Check) {
			t.Errorf("offered to %+v: %v", to, err)
		}
	}
}

// faults finds what is wrong with an offer.
func faults(o *module.Offer, check func(tool.Tool) error) (errs []error) {
	taken := map[string]bool{}
	found := func(kind, name string, err error) {
		if key := kind + " " + name; taken[key] {
			errs = append(errs, fmt.Errorf("%s %q is offered twice", kind, name))
		} else {
			taken[key] = true
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", kind, name, err))
		}
	}
	for _, t := range o.Tools {
		err := toolFault(t)
		if err == nil && check != nil {
			err = check(t)
		}
		found("tool", t.Name, err)
	}
	for _, r := range o.Resources {
		found("resource", r.URI, resourceFault(r, false))
	}
	for _, r := range o.Templates {
		found("template", r.URI, resourceFault(r, true))
	}
	for _, p := range o.Prompts {
		found("prompt", p.Name, promptFault(p))
	}
	for name, h := range o.Methods {
		if h == nil {
			errs = append(errs, fmt.Errorf("method %q has no handler", name))
		}
	}
	for name, raw := range o.Extensions {
		if !isObject(raw) {
			errs = append(errs, fmt.Errorf("extension %q: what is advertised must be a JSON object", name))
		}
	}
	return errs
}

var legalName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,63}$`)

func toolFault(t tool.Tool) error {
	switch {
	case !legalName.MatchString(t.Name):
		return errors.New("a name is a letter and up to 63 letters, digits and _")
	case t.Run == nil:
		return errors.New("no handler")
	case t.Raw != nil:
		return rawToolFault(t.Raw)
	case t.Description == "":
		return errors.New("no description; a model chooses by it")
	case t.Effects.ReadOnly() && t.Effects&(tool.Writes|tool.Destroys) != 0:
		return errors.New("it cannot both only look and change something")
	case t.Meta != nil && !isObject(t.Meta):
		return errors.New("meta must be a JSON object")
	}
	return errors.Join(inputFault(t), outputFault(t))
}

// rawToolFault holds a relayed listing to what the host needs of it.
func rawToolFault(raw json.RawMessage) error {
	var l struct {
		Input json.RawMessage `json:"inputSchema"`
	}
	if err := json.Unmarshal(raw, &l); err != nil {
		return fmt.Errorf("raw listing: %w", err)
	}
	if !isObject(l.Input) {
		return errors.New("raw listing: inputSchema must be an object")
	}
	return nil
}

func inputFault(t tool.Tool) error {
	switch {
	case t.Input != nil && !isObject(t.Input):
		return errors.New("input schema must be a JSON object")
	case t.In == nil:
		return nil
	case t.In.Kind() != reflect.Struct:
		return fmt.Errorf("arguments are decoded into %v, want a struct", t.In)
	}
	return encodes(t.In, "arguments")
}

func outputFault(t tool.Tool) error {
	if t.Output != nil && !isObject(t.Output) {
		return errors.New("output schema must be a JSON object")
	}
	if t.Out == nil {
		return nil
	}
	return encodes(t.Out, "output")
}

// encodes reports whether a type has a JSON form.
func encodes(t reflect.Type, what string) error {
	if _, err := json.Marshal(reflect.New(t).Interface()); err != nil {
		return fmt.Errorf("%s of type %v: %w", what, t, err)
	}
	return nil
}

func resourceFault(r module.Resource, template bool) error {
	switch {
	case r.Read == nil:
		return errors.New("no way to read it")
	case r.Raw != nil && !isObject(r.Raw):
		return errors.New("raw listing must be a JSON object")
	case r.Raw == nil && r.Name == "":
		return errors.New("no name")
	case !template && r.Complete != nil:
		return errors.New("only a template has variables to complete")
	case template:
		return templateFault(r.URI)
	}
	u, err := url.Parse(r.URI)
	if err == nil && u.Scheme == "" {
		err = errors.New("a URI begins with a scheme")
	}
	return err
}

var variable = regexp.MustCompile(`\{[^{}]+\}`)

func templateFault(uri string) error {
	if !variable.MatchString(uri) {
		return errors.New("a template has a variable in braces; without one it is a resource")
	}
	u, err := url.Parse(variable.ReplaceAllString(uri, "x"))
	if err == nil && u.Scheme == "" {
		err = errors.New("a URI begins with a scheme")
	}
	return err
}

func promptFault(p module.Prompt) error {
	taken := map[string]bool{}
	for _, a := range p.Args {
		if a.Name == "" || taken[a.Name] {
			return fmt.Errorf("argument %q: every argument has a name of its own", a.Name)
		}
		taken[a.Name] = true
	}
	switch {
	case p.Name == "":
		return errors.New("no name")
	case p.Get == nil:
		return errors.New("no handler")
	case p.Raw != nil && !isObject(p.Raw):
		return errors.New("raw listing must be a JSON object")
	case p.Raw == nil && p.Description == "":
		return errors.New("no description")
	}
	return nil
}

func isObject(raw json.RawMessage) bool {
	var o map[string]json.RawMessage
	return json.Unmarshal(raw, &o) == nil && o != nil
}

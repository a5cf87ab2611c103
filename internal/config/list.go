package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/administration"
)

// List returns all settings that hold a value of their own, each with its source. Values of secrets are left out.
func (l *Loaded) List() (all []administration.Setting) {
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for _, s := range settingsIn(v.Type(), path) {
			if s.section() {
				walk(v.Field(s.at), s.path)
				continue
			}
			one := administration.Setting{
				Path: s.path, Type: s.plainType(), Enum: s.enum(), Source: l.Where(s.path).String(),
				Live: s.tag.Get("live") != "", Secret: s.secret() || s.typ == secretType, Doc: s.tag.Get("doc"),
			}
			if value := s.plain(v.Field(s.at)); value != nil && !one.Secret {
				one.Value, _ = json.Marshal(value) // texts, numbers, lists and maps only
			}
			all = append(all, one)
		}
	}
	walk(reflect.ValueOf(l.Config), "")
	return all
}

// plainType returns the type of the JSON value of a setting.
func (s setting) plainType() string {
	switch {
	case s.isList(), s.typ.Kind() == reflect.Slice:
		return "array"
	case s.typ.Kind() == reflect.Map:
		return "object"
	case s.typ == durationType, s.typ == levelType, s.tag.Get("unit") == "bytes":
		return "string"
	}
	return plainType(s.typ)
}

// plain returns a value as JSON and the file would hold it; nil stands for an unset setting.
func (s setting) plain(v reflect.Value) any {
	switch {
	case unsaid(v):
		return nil
	case s.secret(), s.typ == secretType:
		return secret.Mask
	case s.section():
		return plainMembers(v, s.path)
	case s.isList():
		list := []any{}
		for i := range v.Len() {
			list = append(list, plainMembers(v.Index(i), s.path))
		}
		return list
	case s.typ == durationType, s.typ == levelType, s.tag.Get("unit") == "bytes":
		return s.formatValue(v)
	case v.Kind() == reflect.Map:
		members := map[string]any{}
		for _, k := range v.MapKeys() {
			members[k.String()] = setting{typ: s.typ.Elem()}.plain(v.MapIndex(k))
		}
		return members
	}
	return v.Interface()
}

// plainMembers returns the members of a struct that are set.
func plainMembers(v reflect.Value, path string) map[string]any {
	members := map[string]any{}
	for _, s := range settingsIn(v.Type(), path) {
		f := v.Field(s.at)
		if f.IsZero() {
			continue
		}
		if value := s.plain(f); value != nil {
			members[s.key] = value
		}
	}
	return members
}

// Problems returns the mistakes that the error of Load, Validate or Explain joins, with their places.
func Problems(err error) (all []administration.SettingsProblem) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, Problems(e)...)
		}
		return all
	}
	p := administration.SettingsProblem{Message: err.Error()}
	if at, ok := errors.AsType[*PositionError](err); ok {
		p.Line, p.Column, p.Path, p.Message = at.Line, at.Column, at.Path, at.Err.Error()
	} else if s, ok := errors.AsType[*SettingProblem](err); ok {
		p.Path = s.Path
	}
	return append(all, p)
}

// Changeable returns an error unless a path is that of a setting that Edit can change.
func Changeable(path string) error {
	for _, s := range leaves(reflect.TypeFor[Config](), "") {
		if s.path != path {
			continue
		}
		if s.secret() || s.typ == secretType {
			return fmt.Errorf("%s is a secret; it is set in the file or by %s alone", path, s.variable())
		}
		return nil
	}
	return fmt.Errorf("there is no setting %q; config_show lists the settings", path)
}

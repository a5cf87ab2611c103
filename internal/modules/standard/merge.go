package standard

import (
	"context"
	"errors"
	"maps"
	"slices"

	"gatehouse/module"
)

// merge makes one module of several that share a name. Its offer has the tools,
// prompts and resources of all parts, in their order. The names of the tools must
// differ.
func merge(parts ...module.New) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		all := &mergedModule{}
		for _, make := range parts {
			m, err := make(ctx, d)
			if err != nil {
				return nil, errors.Join(err, all.Close(context.WithoutCancel(ctx)))
			}
			all.parts = append(all.parts, m)
		}
		return all, nil
	}
}

type mergedModule struct{ parts []module.Module }

// Offer implements module.Module. It fails if one part cannot make its offer.
func (s *mergedModule) Offer(ctx context.Context, to module.Audience) (*module.Offer, error) {
	whole := &module.Offer{}
	for _, m := range s.parts {
		o, err := m.Offer(ctx, to)
		if err != nil {
			return nil, err
		}
		whole.Personal = whole.Personal || o.Personal
		whole.Tools = append(whole.Tools, o.Tools...)
		whole.Resources = append(whole.Resources, o.Resources...)
		whole.Templates = append(whole.Templates, o.Templates...)
		whole.Prompts = append(whole.Prompts, o.Prompts...)
		whole.Methods = mergeMaps(whole.Methods, o.Methods)
		whole.Extensions = mergeMaps(whole.Extensions, o.Extensions)
	}
	return whole, nil
}

func mergeMaps[V any](a, b map[string]V) map[string]V {
	if len(b) == 0 {
		return a
	}
	if a == nil {
		a = map[string]V{}
	}
	maps.Copy(a, b)
	return a
}

// Close closes the parts in reverse order.
func (s *mergedModule) Close(ctx context.Context) error {
	var errs []error
	for _, m := range slices.Backward(s.parts) {
		errs = append(errs, m.Close(ctx))
	}
	return errors.Join(errs...)
}
